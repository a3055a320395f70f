"""The way of an answer from a worker to its readers: token log first, then one push per web process and step.

Workers call publish(), notify() and listen(); web processes call follow() or watching(). Beside it, tell() and
subscribed() carry hints about a topic, such as a person's list of chats. A push may be lost:
readers repair gaps from the log, and once a second whoever heard nothing is checked against log and row, so
that every reader gets its end. This is the only importer of channels.layers.
"""

import asyncio
import functools
import logging
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from time import monotonic
from typing import Any
from uuid import UUID

import uvloop
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import Error as DatabaseError
from redis.exceptions import RedisError

from billing.errors import unavailable
from inference import token_log
from inference.protocol import Append, Cancel, Drain, Event, Frame, Message, News, Notice, TopicKind, decode, encode
from inference.reader import Reader, fetch_places, fetch_rows
from inference.topics import Subscription
from observability import metrics

log = logging.getLogger(__name__)

CHECK_S = 1.0  # a reader that heard nothing for this long is checked
TOPIC_S = 60  # a web process that no longer renews its subscription to a topic is forgotten after this

# What call() runs, as metrics name it: by the message, as where a push is lost.
HINTS = {"end": "end", "tell": "news", "tell_worker": "cancel", "drain_worker": "drain", "open_log": "fence"}


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
    await _push(pushes)
    return results


async def notify(notice: Notice, viewers: Iterable[str]) -> None:
    """Tell who follows of something that is not in the log."""
    await _push({viewer: [notice] for viewer in viewers})


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
    await _push({channel: [Cancel(generation)]})


async def drain_worker(channel: str, worker: UUID) -> None:
    """Ask the worker that listens on `channel` to end what it has and leave. A hint."""
    await _push({channel: [Drain(worker)]})


async def tell(topic: UUID, kind: TopicKind, data: dict[str, Any]) -> None:
    """Tell everyone who subscribes to `topic`, at any web process. A hint."""
    try:
        channels = await token_log.viewers(topic)
    except RedisError as error:
        metrics.hints_lost.labels("news").inc()
        log.warning("news of %s not told: %s", topic, error)
    else:
        await _push({channel: [News(topic, kind, data)] for channel in channels})


async def _push(batches: Mapping[str, list[Message]]) -> None:
    """One message per channel; what cannot be sent in time is dropped."""
    layer = get_channel_layer()
    for channel, messages in batches.items():
        try:
            async with asyncio.timeout(settings.HINT_TIMEOUT_S):
                await layer.send(channel, {"type": "relay", "data": encode(messages)})
        except (TimeoutError, RedisError, OSError) as error:
            metrics.hints_lost.labels(type(messages[0]).__name__.lower()).inc()
            log.warning("%d messages to %s lost: %r", len(messages), channel, error)


def call(work: Coroutine[Any, Any, None]) -> None:
    """Run a hint from a thread without an event loop, for at most the hint's time; never raises for the stores.

    It runs on one background loop per process, so that connections are kept. (async_to_sync would make a loop,
    and new connections, for each call.)
    """
    future = asyncio.run_coroutine_threadsafe(work, _background())
    try:
        future.result(settings.HINT_TIMEOUT_S)
    except (TimeoutError, RedisError, OSError) as error:
        future.cancel()
        name = getattr(work, "__name__", "")
        metrics.hints_lost.labels(HINTS.get(name, "other")).inc()
        log.warning("%s: hint lost: %r", name, error)


@functools.cache
def _background() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, name="relay", daemon=True).start()
    return loop


async def new_channel(prefix: str) -> str:
    """A channel of this process."""
    name: str = await get_channel_layer().new_channel(prefix)
    return name


async def forever(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` until cancelled: when it fails, that is logged and it starts again."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("a task of the relay failed; it starts again")
            await asyncio.sleep(CHECK_S)


async def listen(channel: str, receive: Callable[[Message], None]) -> None:
    """Hand every message that arrives on `channel` to `receive`; runs until its task is cancelled."""
    layer = get_channel_layer()
    while True:
        message = await layer.receive(channel)
        for part in decode(message["data"]):
            receive(part)


# -- the web process's side ---------------------------------------------------------------------------


class Hub:
    """The readers of one web process: one channel, one reading task that is never cancelled, one check a second."""

    def __init__(self) -> None:
        self._readers: dict[UUID, set[Reader]] = {}
        self._topics: dict[UUID, set[Subscription]] = {}
        self._subscribed_at = 0.0
        self._channel: asyncio.Future[str] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def channel(self) -> str:
        """This process's channel; opened by the first reader. Raises RedisError."""
        if self._channel is None or (self._channel.done() and self._channel.exception()):
            # All readers share these tasks: what they log is not the first one's.
            self._channel = asyncio.create_task(new_channel("web"), context=Context())
            name = await self._channel
            for work in (lambda: listen(name, self._deliver), self._check_forever):
                self._tasks.add(asyncio.create_task(forever(work), context=Context()))
        return await asyncio.shield(self._channel)

    async def join(self, reader: Reader) -> None:
        """Add a reader, and this process to the viewers. Raises RedisError, TimeoutError."""
        async with asyncio.timeout(settings.REDIS_TIMEOUT_S):
            name = await self.channel()
            self._readers.setdefault(reader.generation, set()).add(reader)
            await token_log.watch([reader.generation], name)

    async def leave(self, reader: Reader) -> None:
        """Remove a reader. A store that is away keeps a viewer too many until the log expires."""
        readers = self._readers.get(reader.generation, set())
        readers.discard(reader)
        if readers:
            return
        self._readers.pop(reader.generation, None)
        try:
            await token_log.unwatch(reader.generation, await self.channel())
        except RedisError as error:
            log.info("viewer of %s stays: %s", reader.generation, error)

    async def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription; while the store is away it hears nothing, and does once it is back."""
        self._topics.setdefault(subscription.topic, set()).add(subscription)
        try:
            async with asyncio.timeout(settings.REDIS_TIMEOUT_S):
                await token_log.subscribe([subscription.topic], await self.channel(), TOPIC_S)
        except (RedisError, TimeoutError, OSError) as error:
            log.warning("subscription to %s waits: %r", subscription.topic, error)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription; this process leaves the topic's viewers when their time is up."""
        subscriptions = self._topics.get(subscription.topic, set())
        subscriptions.discard(subscription)
        if not subscriptions:
            self._topics.pop(subscription.topic, None)

    def _deliver(self, message: Message) -> None:
        if isinstance(message, Frame | Notice):
            for reader in self._readers.get(message.generation, ()):
                reader.offer(message)
        elif isinstance(message, News):
            for subscription in self._topics.get(message.topic, ()):
                subscription.offer(message)

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            now = monotonic()
            if self._topics and now - self._subscribed_at > TOPIC_S / 4:
                self._subscribed_at = now
                await self._renew_topics()
            silent = [
                generation
                for generation, readers in self._readers.items()
                if any(now - reader.heard_at > CHECK_S for reader in readers)
            ]
            if not silent:
                continue
            metrics.reader_repairs.labels("check").inc(len(silent))
            try:
                await self._check(silent)
            except (RedisError, DatabaseError, TimeoutError) as error:
                log.warning("check of %d silent streams: %r", len(silent), error)

    async def _renew_topics(self) -> None:
        try:
            await token_log.subscribe(list(self._topics), await self.channel(), TOPIC_S)
        except (RedisError, OSError) as error:
            log.warning("subscriptions to %d topics not renewed: %r", len(self._topics), error)

    async def _check(self, generations: list[UUID]) -> None:
        began = monotonic()
        lengths = await token_log.watch(generations, await self.channel())
        rows = await fetch_rows(generations)
        waiting = [row.id for row in rows.values() if row.is_waiting]
        places = await fetch_places(waiting) if waiting else {}
        for generation, length in zip(generations, lengths, strict=True):
            row = rows.get(generation)
            for reader in self._readers.get(generation, ()):
                if reader.heard_at > began:
                    continue  # heard meanwhile, or began after its row was looked for
                if length > reader.seq:
                    reader.mark_gap()
                if row is None:
                    data = {"code": "deleted", "message": "This answer was deleted."}
                    reader.finish(Event("error", generation, reader.seq, data))
                elif row.is_ended:
                    reader.finish(row.terminal_event())
                elif generation in places:
                    reader.place(**places[generation])


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = weakref.WeakKeyDictionary()


def _hub() -> Hub:
    return _hubs.setdefault(asyncio.get_running_loop(), Hub())


@asynccontextmanager
async def subscribed(topic: UUID) -> AsyncIterator[AsyncIterator[News]]:
    """What `tell` says about a topic, at most once each, while the block runs. Raises nothing for the stores."""
    subscription, hub = Subscription(topic), _hub()
    try:
        await hub.subscribe(subscription)
        yield subscription.news()
    finally:
        hub.unsubscribe(subscription)


@asynccontextmanager
async def watching(generation: UUID) -> AsyncIterator[Reader]:
    """Join a generation's readers, if wished before it exists, so that nothing is missed.

    Raises Refusal (unavailable) when the store is away.
    """
    reader, hub = Reader(generation), _hub()
    try:
        await hub.join(reader)
    except (RedisError, TimeoutError, OSError) as error:
        await hub.leave(reader)
        raise unavailable() from error
    try:
        yield reader
    finally:
        await asyncio.shield(hub.leave(reader))


async def is_followed(generation: UUID) -> bool:
    """Whether anyone reads this generation's stream, at any web process; True when that cannot be known."""
    try:
        return await token_log.has_viewers(generation)
    except RedisError as error:
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
