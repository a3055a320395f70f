"""Reads of generation rows for streams: what a reader is told comes from here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from inference.models import Generation
from inference.protocol import Event


def started_data(model: str, instead_of: str) -> dict[str, str]:
    """What the event `started` says: who answers, and which busy model that stands in for."""
    return {"model": model, "instead_of": instead_of} if instead_of else {"model": model}


@dataclass(frozen=True)
class Row:
    """A generation as a stream sees it."""

    id: UUID
    model: str
    instead_of: str
    status: str
    frames: int
    finish_reason: str | None
    error_code: str
    error_message: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    started: bool
    purged: bool

    @property
    def is_waiting(self) -> bool:
        return self.status == Generation.Status.WAITING

    @property
    def is_ended(self) -> bool:
        return self.finish_reason is not None

    def terminal_event(self) -> Event:
        """The stream's last event. Only for an ended row."""
        usage = {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        if self.status == Generation.Status.FAILED:
            data: dict[str, Any] = {"code": self.error_code, "message": self.error_message, "usage": usage}
            return Event("error", self.id, self.frames, data)
        return Event("done", self.id, self.frames, {"finish_reason": self.finish_reason, "usage": usage})


def row_of(generation: Generation) -> Row:
    """The Row of a loaded generation."""
    return Row(
        id=generation.pk,
        model=generation.model_id,
        instead_of=generation.instead_of,
        status=generation.status,
        frames=generation.frames,
        finish_reason=generation.finish_reason,
        error_code=generation.error_code,
        error_message=generation.error_message,
        prompt_tokens=generation.prompt_tokens,
        cached_tokens=generation.cached_tokens,
        completion_tokens=generation.completion_tokens,
        started=generation.started_at is not None,
        purged=generation.purged_at is not None,
    )


def look(generations: Sequence[UUID]) -> dict[UUID, Row]:
    """The rows of many generations in one query; those that do not exist are missing."""
    found = Generation.objects.filter(pk__in=generations).defer("prompt", "text", "sampling")
    return {generation.pk: row_of(generation) for generation in found}


def kept_text(generation: UUID) -> str:
    """An ended generation's text, until it is purged."""
    return Generation.objects.filter(pk=generation).values_list("text", flat=True).first() or ""
