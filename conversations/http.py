"""HTTP below Django's request cycle: what the streaming routes share (routed in chatsite.routing).

A streaming route is an ASGI application without middleware: it reads the body, does its database work in one
hop() and then writes events until they end or the client leaves.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any, NoReturn, ParamSpec, TypeVar

from channels.db import database_sync_to_async
from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections

from billing.errors import Refusal, unavailable

log = logging.getLogger(__name__)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
P = ParamSpec("P")
T = TypeVar("T")

# More threads than connections would only wait for each other, and Django's views need some of the pool too.
_threads = ThreadPoolExecutor(max(2, settings.DATABASE_POOL // 2), thread_name_prefix="hop")
_detached: set[Future[None]] = set()

EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-transform, no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientLeft(Exception):
    """The client hung up before its request was complete."""


async def hop(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work`, which may use the database, in a thread; its connection goes back to the pool with its return.

    Raises what `work` raises; Refusal (unavailable) when the database is away.
    """
    run = database_sync_to_async(work, thread_sensitive=False, executor=_threads)
    try:
        return await run(*args, **kwargs)  # type: ignore[no-any-return]
    except (OperationalError, InterfaceError) as error:
        raise unavailable() from error


def run_detached(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Run `work`, which may use the database, without waiting; a process that stops waits for it (detached_done)."""

    def run() -> None:
        try:
            work(*args, **kwargs)
        except (OperationalError, InterfaceError, Refusal) as error:
            log.warning("%s%s not done: %s", work.__name__, args, error)
        finally:
            close_old_connections()

    future = _threads.submit(copy_context().run, run)
    _detached.add(future)
    future.add_done_callback(_detached.discard)


async def detached_done(timeout_s: float) -> None:
    """Return when what run_detached began is done, or after this time."""
    if _detached:
        await asyncio.wait([asyncio.wrap_future(future) for future in list(_detached)], timeout=timeout_s)


def header(scope: Scope, name: bytes) -> str | None:
    """A request header; `name` in lower case."""
    return next((value.decode("latin1") for key, value in scope["headers"] if key == name), None)


def too_large() -> Refusal:
    return Refusal("too_large", f"A request body has at most {settings.MAX_BODY_BYTES} bytes.", status=413)


def announces_too_much(scope: Scope) -> bool:
    """Whether Content-Length names more than we take."""
    length = header(scope, b"content-length") or ""
    return length.isdecimal() and int(length[:20]) > settings.MAX_BODY_BYTES


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The request's body. Raises Refusal (too_large), ClientLeft."""
    if announces_too_much(scope):
        raise too_large()
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > settings.MAX_BODY_BYTES:
            raise too_large()
        more = message.get("more_body", False)
    return b"".join(parts)


def parse_object(body: bytes | str) -> dict[str, Any]:
    """The JSON object in a body or frame. Raises Refusal (invalid_json)."""
    try:
        found = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refusal("invalid_json", "The body is not valid JSON in UTF-8.", param="body") from None
    if not isinstance(found, dict):
        raise Refusal("invalid_json", "The body must be a JSON object.", param="body")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


async def send_json(send: Send, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
    """A whole JSON response."""
    data = json.dumps(body).encode()
    named = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
    raw = [(name.lower().encode("latin1"), value.encode("latin1")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": data})


async def send_refusal(send: Send, refusal: Refusal) -> None:
    """A refusal in the native API's shape."""
    await send_json(send, refusal.status, refusal.body(), refusal.headers())


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None when the client left first: `work` is then cancelled, and has ended."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.wait({task, gone})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def event_stream(
    send: Send, *, ping: bytes, headers: list[tuple[bytes, bytes]]
) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
    """A text/event-stream response: yields its write(), and writes `ping` whenever HEARTBEAT_S passed in silence."""
    clock, silence = asyncio.get_running_loop().time, settings.HEARTBEAT_S
    last = clock()

    async def write(data: bytes) -> None:
        nonlocal last
        last = clock()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def beat() -> None:
        while True:
            await asyncio.sleep(last + silence - clock())
            if clock() >= last + silence:
                await write(ping)

    await send({"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM_HEADERS, *headers]})
    beating = asyncio.create_task(beat())
    try:
        yield write
    finally:
        beating.cancel()
    await send({"type": "http.response.body", "body": b"", "more_body": False})
