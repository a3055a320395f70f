"""The way of an answer from a worker to its readers: token log first, then one push per web process and step.

Workers call publish() and notify(); web processes call follow() or watching(). Beside it, tell() and subscribed()
carry hints about a topic, such as a person's list of chats. A push may be lost: inference.hub repairs that.
"""

import asyncio
import functools
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID

import uvloop
from django.conf import settings
from redis.exceptions import RedisError

from billing.errors import unavailable
from inference import hub, layer, metrics, token_log, viewers
from inference.protocol import Append, Cancel, Drain, Event, Frame, Message, News, Notice, TopicKind
from inference.reader import Reader
from inference.topics import Subscription

log = logging.getLogger(__name__)

T = TypeVar("T")

# What call() runs, as metrics name it: by the message, as where a push is lost.
HINTS = {
    "end": "end",
    "tell": "news",
    "tell_worker": "cancel",
    "drain_worker": "drain",
    "open_log": "fence",
    "look": "look",
}


# -- the worker's side -----------------------------------------------------------------------------


async def publish(appends: Sequence[Append]) -> dict[UUID, token_log.Appended]:
    """Log the new entries, then push them to who follows. Raises RedisError when the log cannot be reached."""
    results = await token_log.append(appends)
    pushes: dict[str, list[Message]] = {}
    for request in appends:
        result = results[request.generation]
        if result.is_stale or result.length < request.first:
            continue
        frames = [
            Frame(request.generation, request.first + i, entry.kind, entry.text)
            for i, entry in enumerate(request.entries)
        ]
        for viewer in result.viewers:
            pushes.setdefault(viewer, []).extend(frames)
    await layer.push(pushes)
    return results


async def notify(notice: Notice, viewers: Iterable[str]) -> None:
    """Tell who follows of something that is not in the log."""
    await layer.push({viewer: [notice] for viewer in viewers})


async def end(notice: Notice) -> None:
    """The generation has ended and its row says so: let the log expire and tell who follows. A hint."""
    try:
        viewers = await token_log.close_log(notice.generation, settings.REPLAY_S)
    except RedisError as error:
        metrics.hints_lost.labels("end").inc()
        log.warning("end of %s not announced: %s", notice.generation, error)
    else:
        await notify(notice, viewers)


async def tell_worker(channel: str, generation: UUID) -> None:
    """Ask the worker that listens on `channel` to abort a generation. A hint."""
    await layer.push({channel: [Cancel(generation)]})


async def drain_worker(channel: str, worker: UUID) -> None:
    """Ask the worker that listens on `channel` to end what it has and leave. A hint."""
    await layer.push({channel: [Drain(worker)]})


async def tell(topic: UUID, kind: TopicKind, data: dict[str, Any]) -> None:
    """Tell everyone who subscribes to `topic`, at any web process. A hint."""
    try:
        channels = await viewers.find(topic)
    except RedisError as error:
        metrics.hints_lost.labels("news").inc()
        log.warning("news of %s not told: %s", topic, error)
    else:
        await layer.push({channel: [News(topic, kind, data)] for channel in channels})


# -- the web process's side ---------------------------------------------------------------------------


@asynccontextmanager
async def subscribed(topic: UUID) -> AsyncIterator[AsyncIterator[News]]:
    """What `tell` says about a topic, at most once each, while the block runs. Raises nothing for the stores."""
    subscription, readers = Subscription(topic), hub.hub()
    try:
        await readers.subscribe(subscription)
        yield subscription.news()
    finally:
        readers.unsubscribe(subscription)


@asynccontextmanager
async def watching(generation: UUID, *, comes_back: bool = False) -> AsyncIterator[Reader]:
    """Join a generation's readers, if wished before it exists, so that nothing is missed.

    `comes_back`: its client resumes by itself when the stream ends early, so that a process that is told to stop lets
    it go at once. Raises Refusal (unavailable) when the store is away.
    """
    reader, readers = Reader(generation, comes_back=comes_back), hub.hub()
    try:
        try:
            await readers.join(reader)
        except (RedisError, TimeoutError, OSError) as error:
            raise unavailable() from error
        yield reader
    finally:  # also of who went away in the middle of joining
        await asyncio.shield(readers.leave(reader))


def let_go(*, everyone: bool) -> None:
    """This process is told to stop: streams end without a terminal event, those whose client comes back, or all."""
    hub.hub().let_go(everyone=everyone)


async def is_followed(generation: UUID) -> bool:
    """Whether anyone reads this generation's stream, at any web process; True when that cannot be known."""
    try:
        return bool(await viewers.find(generation))
    except (RedisError, OSError) as error:
        log.warning("viewers of %s: %s", generation, error)
        return True


async def follow(generation: UUID, *, after: int = 0) -> AsyncGenerator[Event, None]:
    """Everything that a reader who holds `after` frames must still be told, to the end.

    Close it with contextlib.aclosing. Ownership is the caller's to check. Raises Refusal (not_found,
    unavailable) before the first event. A generation whose text was purged yields an empty snapshot: who keeps
    the text (a Message) answers such readers without following.
    """
    async with watching(generation) as reader:
        async for event in reader.events(after):
            yield event


# -- from threads without an event loop ------------------------------------------------------------------


def call(work: Coroutine[Any, Any, T]) -> T | None:
    """The result of a hint or a look from a thread, in at most a hint's time; None when the stores did not answer.

    It runs on one background loop per process, so that connections are kept. (async_to_sync would make a loop,
    and new connections, for each call.)
    """
    future = asyncio.run_coroutine_threadsafe(work, _background())
    try:
        return future.result(settings.HINT_TIMEOUT_S)
    except (TimeoutError, RedisError, OSError) as error:
        future.cancel()
        name = getattr(work, "__name__", "")
        metrics.hints_lost.labels(HINTS.get(name, "other")).inc()
        log.warning("%s: hint lost: %r", name, error)
        return None


@functools.cache
def _background() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, name="relay", daemon=True).start()
    return loop
