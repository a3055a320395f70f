"""The readers of one web process: one channel, one task that listens and is never cancelled, one that checks.

Who heard nothing for CHECK_S is checked against log and row, so that a lost push, a lost connection or a stalled
process is repaired within a second of its end, and every reader gets its end.
"""

import asyncio
import logging
import weakref
from contextvars import Context
from time import monotonic
from uuid import UUID

from django.conf import settings
from django.db import Error as DatabaseError
from redis.exceptions import RedisError

from inference import layer, metrics, viewers
from inference.protocol import Event, Frame, Message, News, Notice
from inference.reader import Reader, fetch_places, fetch_rows
from inference.topics import Subscription

log = logging.getLogger(__name__)

CHECK_S = 0.6  # a reader that heard nothing for this long is checked, and again after as long
STEP_S = 0.25


class Hub:
    """The readers and subscriptions of this process's event loop."""

    def __init__(self) -> None:
        self._readers: dict[UUID, set[Reader]] = {}
        self._topics: dict[UUID, set[Subscription]] = {}
        self._renewed_at = 0.0
        self._channel: asyncio.Future[str] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lets_go = False  # of readers that can come back
        self._lets_all_go = False

    async def channel(self) -> str:
        """This process's channel; opened by the first reader. Raises RedisError."""
        if self._channel is None or (self._channel.done() and self._channel.exception()):
            # All readers share these tasks: what they log is not the first one's.
            self._channel = asyncio.create_task(layer.new_channel("web"), context=Context())
            name = await self._channel
            for work in (lambda: layer.listen(name, self.deliver), self._check_forever):
                self._tasks.add(asyncio.create_task(layer.forever(work), context=Context()))
        return await asyncio.shield(self._channel)

    async def join(self, reader: Reader) -> None:
        """Add a reader, and this process to the viewers. Raises RedisError, TimeoutError."""
        async with asyncio.timeout(settings.REDIS_TIMEOUT_S):
            name = await self.channel()
            self._readers.setdefault(reader.generation, set()).add(reader)
            await viewers.watch([reader.generation], name)
        if self._lets_all_go or (self._lets_go and reader.comes_back):
            reader.let_go()

    async def leave(self, reader: Reader) -> None:
        """Remove a reader. A store that is away keeps a viewer too many until it lapses."""
        readers = self._readers.get(reader.generation, set())
        readers.discard(reader)
        if readers:
            return
        self._readers.pop(reader.generation, None)
        if reader.has_ended:
            return  # nothing more is pushed, and the viewer lapses
        try:
            await viewers.unwatch(reader.generation, await self.channel())
        except RedisError as error:
            log.info("viewer of %s stays: %s", reader.generation, error)

    def let_go(self, *, everyone: bool) -> None:
        """Send readers away, now and as they come: those that come back by themselves, or everyone."""
        self._lets_go, self._lets_all_go = True, self._lets_all_go or everyone
        for readers in self._readers.values():
            for reader in readers:
                if everyone or reader.comes_back:
                    reader.let_go()

    async def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription; while the store is away it hears nothing, and does once it is back."""
        self._topics.setdefault(subscription.topic, set()).add(subscription)
        try:
            async with asyncio.timeout(settings.REDIS_TIMEOUT_S):
                await viewers.watch([subscription.topic], await self.channel())
        except (RedisError, TimeoutError, OSError) as error:
            log.warning("subscription to %s waits: %r", subscription.topic, error)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription; this process lapses from the topic's viewers."""
        subscriptions = self._topics.get(subscription.topic, set())
        subscriptions.discard(subscription)
        if not subscriptions:
            self._topics.pop(subscription.topic, None)

    def deliver(self, message: Message) -> None:
        """A message that arrived on this process's channel."""
        if isinstance(message, Frame | Notice):
            for reader in self._readers.get(message.generation, ()):
                reader.offer(message)
        elif isinstance(message, News):
            for subscription in self._topics.get(message.topic, ()):
                subscription.offer(message)

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(STEP_S)
            try:
                await self._renew()
                await self.check([generation for generation, readers in self._readers.items() if _is_silent(readers)])
            except (RedisError, DatabaseError, TimeoutError, OSError) as error:
                log.warning("check of %d streams: %r", len(self._readers), error)

    async def _renew(self) -> None:
        """Say that this process lives and still follows what it follows."""
        now, followed = monotonic(), [*self._readers, *self._topics]
        if followed and now - self._renewed_at > viewers.RENEW_S:
            self._renewed_at = now
            await self._watch(followed)

    async def _watch(self, ids: list[UUID]) -> dict[UUID, int]:
        """viewers.watch, but what lost its last reader meanwhile, who has left already, is not followed again."""
        followed = [generation for generation in ids if generation in self._readers]
        lengths = await viewers.watch(ids, await self.channel())
        for generation in followed:
            if generation not in self._readers:
                await viewers.unwatch(generation, await self.channel())
        return lengths

    async def check(self, generations: list[UUID]) -> None:
        """Hold the readers of these against log and row. Raises RedisError, DatabaseError."""
        if not generations:
            return
        metrics.reader_repairs.labels("check").inc(len(generations))
        began = monotonic()
        lengths = await self._watch(generations)
        rows = await fetch_rows(generations)
        waiting = [row.id for row in rows.values() if row.is_waiting]
        places = await fetch_places(waiting) if waiting else {}
        repaired = 0
        for generation in generations:
            row = rows.get(generation)
            for reader in self._readers.get(generation, ()):
                if reader.heard_at > began:
                    continue  # heard meanwhile, or began after its row was looked for
                reader.checked_at = began
                if lengths[generation] > reader.seq:
                    repaired += reader.mark_gap()
                if row is None:
                    data = {"code": "deleted", "message": "This answer was deleted."}
                    reader.finish(Event("error", generation, reader.seq, data))
                elif row.is_ended:
                    reader.finish(row.terminal_event())
                elif generation in places:
                    reader.place(**places[generation])
        if repaired:
            metrics.reader_repairs.labels("gap").inc(repaired)
            log.info("%d streams had missed something and read the log", repaired)


def _is_silent(readers: set[Reader]) -> bool:
    now = monotonic()
    return any(now - max(reader.heard_at, reader.checked_at) > CHECK_S for reader in readers)


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = weakref.WeakKeyDictionary()


def hub() -> Hub:
    """The running event loop's."""
    return _hubs.setdefault(asyncio.get_running_loop(), Hub())
