"""Refusals: every "no" that a caller can act on, rendered in one place for each protocol."""

import re
from math import ceil
from typing import Any

from billing import metrics

WINDOW = re.compile(r"_per_.+(?=_used_up|_too_small)")  # windows have any length; a metric tells only their kind


class Refusal(Exception):
    """A request that is refused: machine-readable `code`, HTTP `status`, a message for people.

    `param` names the field at fault; `retry_after` is in seconds; `limit_headers` go on every answer of /v1;
    `extra` holds further machine-readable facts.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        retry_after: float | None = None,
        limit_headers: dict[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status
        self.param, self.retry_after, self.extra = param, retry_after, extra
        self.limit_headers = limit_headers or {}

    def headers(self) -> dict[str, str]:
        """Retry-After in whole seconds, at least 1 and at most 60 (the official client ignores more); x-ratelimit-*."""
        if self.retry_after is None:
            return dict(self.limit_headers)
        return {"Retry-After": str(max(1, min(60, ceil(self.retry_after)))), **self.limit_headers}

    def _count(self) -> None:
        metrics.refusals.labels(WINDOW.sub("", self.code)).inc()

    def body(self) -> dict[str, Any]:
        """The native API's error body. Asked for once per answer: it is counted."""
        self._count()
        facts = {"param": self.param, "retry_after": self.retry_after, **self.extra}
        return {
            "error": {
                "code": self.code,
                "message": self.message,
                **{name: value for name, value in facts.items() if value is not None},
            }
        }

    def openai_body(self) -> dict[str, Any]:
        """OpenAI's error body. Asked for once per answer: it is counted."""
        self._count()
        return {
            "error": {
                "message": self.message,
                "type": OPENAI_TYPES.get(self.status, "invalid_request_error"),
                "param": self.param,
                "code": self.code,
                **({} if self.retry_after is None else {"retry_after": self.retry_after}),
                **self.extra,
            }
        }


OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 503: "server_error"}


def not_found(what: str) -> Refusal:
    """404: not there, or not yours; nothing tells the two apart."""
    return Refusal("not_found", f"There is no such {what}.", status=404)


def unavailable(message: str = "The service is busy recovering; try again shortly.") -> Refusal:
    """503: a store or every worker is away for the moment."""
    return Refusal("unavailable", message, status=503, retry_after=5)
