"""The publisher of a worker: gathers what its generations have said and logs it, one call per step.

A frame costs the whole site about 0.16 ms of CPU, from the log to the reader's socket. So when many answers run, each
gets fewer of them, with as much text in all: on a CPU engine they would be taken from the engine itself.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from time import monotonic
from uuid import UUID

from django.conf import settings
from redis.exceptions import RedisError

from inference import relay
from inference.live import Live

log = logging.getLogger(__name__)

FRAMES_PER_S = 100 * (os.cpu_count() or 1)  # of all generations of a worker, before each gets fewer
SLOWEST = 4  # 160 ms: readers still see words appear, not lines


def frame_period(running: int) -> float:
    """Seconds between two frames of one generation, while so many run: FRAME_S, and at most SLOWEST times that."""
    return min(max(settings.FRAME_S, running / FRAMES_PER_S), SLOWEST * settings.FRAME_S)


class Publisher:
    """At most 25 frames a second and generation; a first token, and an end, go at once."""

    def __init__(self, live: Mapping[UUID, Live], may_publish: Callable[[], bool]) -> None:
        self._live = live
        self._may_publish = may_publish
        self._due: dict[UUID, Live] = {}
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()

    def wake(self, live: Live) -> None:
        """Something new was said. The first words and the last do not wait for the step."""
        self._due[live.generation.pk] = live
        self._wake.set()
        if live.finish is not None or live.last_flush_at == 0.0:
            self._urgent.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        last = 0.0
        while True:
            await self._wake.wait()
            try:
                async with asyncio.timeout(max(0.0, last + frame_period(len(self._live)) - monotonic())):
                    await self._urgent.wait()
            except TimeoutError:
                last = monotonic()
            self._urgent.clear()
            await self._flush()

    async def _flush(self) -> None:
        if not self._may_publish():
            await asyncio.sleep(settings.FRAME_S)
            return
        self._wake.clear()
        now, period = monotonic(), frame_period(len(self._live))
        batch: list[Live] = []
        for live in list(self._due.values()):
            if now - live.last_flush_at >= period * 0.9 or live.finish is not None:
                batch.append(live)
                del self._due[live.generation.pk]
                live.last_flush_at = now
        if self._due:
            self._wake.set()
        appends = [append for live in batch if (append := live.append()) is not None]
        if not appends:
            return
        try:
            results = await relay.publish(appends)
        except (RedisError, OSError) as error:
            log.warning("%d frames wait for the log: %s", len(appends), error)
            await asyncio.sleep(settings.FRAME_S)
            self._retry(batch)
            return
        for live in batch:
            result = results.get(live.generation.pk)
            if result is not None:
                live.appended(result.length)
        self._retry([live for live in batch if live.has_unlogged() and not live.is_stale])

    def _retry(self, batch: list[Live]) -> None:
        for live in batch:
            if live.has_unlogged() and live.generation.pk in self._live:
                self._due[live.generation.pk] = live
                self._wake.set()
