"""The outermost ASGI layer: each request gets an id, is counted, and leaves one line in the log.

The id is the caller's X-Request-ID, or a new one; it is on every response, on every line that is logged for the
request, and in the row of a generation that it began, from which the worker's lines have it.
"""

import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any

from django.conf import settings

from conversations.http import Receive, Scope, Send
from inference import metrics
from inference.logs import begin_request

log = logging.getLogger("chatsite.access")

Application = Callable[[Scope, Receive, Send], Awaitable[Any]]

NAME = b"x-request-id"
WELL_FORMED = re.compile(rb"[A-Za-z0-9._:=+/-]{1,100}")
# By the beginning of the path. What is not told here is a page.
ROUTES = {
    "v1": "v1", "api": "api", "ws": "websocket", "admin": "admin", "accounts": "accounts", "static": "static",
    "settings": "settings", "healthz": "ops", "readyz": "ops", "metrics": "ops",
}  # fmt: skip
TOLD = {"v1", "api", "websocket", "completions", "stream"}  # their paths hold no secret, as a link in an e-mail does


def observed(inner: Application) -> Application:
    """`inner` with ids, metrics and an access log."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await inner(scope, receive, send)
            return
        began, route, status = monotonic(), route_of(scope["path"]), "none"
        if route == "ops":
            scope = under_own_name(scope)
        given, stream = given_id(scope), ""
        own = "" if given else str(uuid.uuid4())
        scope["own_request_id"] = own  # may become a generation's id; one that somebody chose may not
        begin_request(given or own)

        # Not async: a frame passes here at the cost of one call.
        def observed_send(message: Mapping[str, Any]) -> Awaitable[None]:
            nonlocal status, stream
            if message["type"] in STARTS:
                status = str(message.get("status", STARTS[message["type"]]))
                metrics.http_response_start.labels(route).observe(monotonic() - began)
                stream = transport_of(message)
                if stream:
                    metrics.open_streams.labels(stream).inc()
                message = with_id(message, given, own)
            return send(message)

        try:
            await inner(scope, receive, observed_send)
        finally:
            if stream:
                metrics.open_streams.labels(stream).dec()
            metrics.http_requests.labels(route, status).inc()
            if route not in ("ops", "static"):
                path = _path(scope) if route in TOLD else route
                said = (scope.get("method", "WS"), path, status, round(1000 * (monotonic() - began)))
                log.info("%s %s %s %s ms", *said)

    return application


def _path(scope: Scope) -> str:
    """As it was sent, percent signs and all, so that it stays one line."""
    return bytes(scope.get("raw_path") or b"")[:300].decode("ascii", "backslashreplace")


def nothing_is_open() -> None:
    """For a process that begins: its gauges exist, and are 0."""
    for transport in ("sse", "websocket"):
        metrics.open_streams.labels(transport).set(0)


# What begins a response, and its status where the message has none.
STARTS = {
    "http.response.start": 200,
    "websocket.accept": 101,
    "websocket.http.response.start": 403,
}


def route_of(path: str) -> str:
    """The kind of route, of a fixed few: a metric's label."""
    if path == "/v1/chat/completions":
        return "completions"
    route = ROUTES.get(path.split("/", 2)[1] if path.startswith("/") else "", "pages")
    return "stream" if route == "api" and path.rstrip("/").endswith("/stream") else route


def under_own_name(scope: Scope) -> Scope:
    """For probes and scrapers, which name an address (a pod's, say): the first of ALLOWED_HOSTS instead."""
    name = settings.ALLOWED_HOSTS[0].lstrip(".") if settings.ALLOWED_HOSTS else "*"
    if name == "*":
        return scope
    others = [(key, value) for key, value in scope["headers"] if key != b"host"]
    return {**scope, "headers": [*others, (b"host", name.encode())]}


def transport_of(start: Mapping[str, Any]) -> str:
    """What stays open after this beginning of a response: websocket, sse, or nothing ("")."""
    if start["type"] == "websocket.accept":
        return "websocket"
    kinds = (value for name, value in start.get("headers") or () if name == b"content-type")
    return "sse" if any(kind.startswith(b"text/event-stream") for kind in kinds) else ""


def given_id(scope: Scope) -> str:
    """The caller's X-Request-ID; empty where there is none that could be logged."""
    value = next((value for name, value in scope["headers"] if name == NAME), b"")
    return value.decode() if WELL_FORMED.fullmatch(value) else ""


def with_id(message: Mapping[str, Any], given: str, own: str) -> dict[str, Any]:
    """A response's start with the caller's id, else the one that it has (a generation's), else our own."""
    headers = list(message.get("headers") or ())
    if given:
        headers = [(name, value) for name, value in headers if name.lower() != NAME]
    if all(name.lower() != NAME for name, _ in headers):
        headers.append((NAME, (given or own).encode()))
    return {**message, "headers": headers}
