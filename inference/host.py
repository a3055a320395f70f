"""EngineHost: owns an engine's slots; claims, runs, publishes, renews, reaps, drains.

Three kinds of threads meet here. The loop thread runs the engine, the publisher and all generations. Celery's
pool threads carry one generation each: claim (database), wait for the loop, finish (database); while they wait
they hold no connection. The keeper thread renews leases once a second, reaps, and looks for lost tickets.
"""

import asyncio
import logging
import os
import signal
import socket
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

import uvloop
from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections
from django.utils import timezone

from inference import claims, layer, metrics
from inference.attempt import Attempt
from inference.claims import Progress
from inference.endings import Ending
from inference.engine import Engine, EngineDead
from inference.keeper import Keeper
from inference.live import Live
from inference.models import Generation, Worker
from inference.protocol import Cancel, Drain, Message
from inference.publisher import Publisher
from inference.slots import Slots

log = logging.getLogger(__name__)
Status = Generation.Status
T = TypeVar("T")

HAND_BACK_S = 5.0  # at most, for writing that others may go on
ENGINE_DIED = 75  # exit status; any supervisor restarts it


class EngineHost:
    """One per GPU worker process."""

    def __init__(self, engine: Engine, *, model: str, name: str) -> None:
        self.engine = engine
        self.worker = Worker(
            id=uuid.uuid4(),
            name=name,
            model_id=model,
            host=socket.gethostname(),
            pid=os.getpid(),
            state=Worker.State.STARTING,
            slots=engine.slots,
            lease_until=timezone.now(),
        )
        self.live: dict[UUID, Live] = {}
        self.publisher = Publisher(self.live, self.may_publish)
        self.keeper = Keeper(self)
        self.slots = Slots(self)
        self.gaps = metrics.Gaps()
        self.is_draining = False
        self._leaving: list[Generation] = []
        self._handing_back = threading.Lock()
        self._early_cancels: OrderedDict[UUID, None] = OrderedDict()
        self._loop = uvloop.new_event_loop()
        self._helpers: list[asyncio.Task[None]] = []

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the engine and begin to serve; returns when ready. Raises EngineDead."""
        threading.Thread(target=self._loop.run_forever, name="engine", daemon=True).start()
        self.worker.channel = self._call(layer.new_channel("worker")).result()
        claims.register(self.worker)
        close_old_connections()
        self.keeper.start()
        try:
            self._call(self._start()).result()
        except EngineDead:
            self.keeper.stop()
            claims.retire(self.worker)
            raise
        self.worker.engine_pid = self.engine.pid()
        self.worker.kv_tokens = self.engine.kv_tokens
        self.worker.state = Worker.State.READY
        claims.announce_ready(self.worker)
        close_old_connections()

    async def _start(self) -> None:
        await self.engine.start()
        self._helpers = [
            asyncio.create_task(layer.forever(lambda: layer.listen(self.worker.channel, self._receive))),
            asyncio.create_task(layer.forever(self.publisher.run)),
            asyncio.create_task(self._watch()),
        ]

    def drain(self) -> None:
        """Take nothing new, let what runs end for DRAIN seconds, hand the rest back, free the engine."""
        self.is_draining = True
        self.worker.state = Worker.State.DRAINING
        if not self.slots.idle.wait(settings.DRAIN_S):
            log.info("handing back %d generations", len(self.slots))
            self._loop.call_soon_threadsafe(self._cancel_all)
            self.slots.idle.wait(max(settings.DRAIN_S, HAND_BACK_S))
        self.keeper.stop()
        self._call(self._stop()).result()
        claims.retire(self.worker)
        close_old_connections()

    async def _stop(self) -> None:
        for helper in self._helpers:
            helper.cancel()
        await asyncio.gather(*self._helpers, return_exceptions=True)
        await self.engine.stop()

    def _cancel_all(self) -> None:
        for live in self.live.values():
            if live.task is not None:
                live.task.cancel()

    async def _watch(self) -> None:
        """Once the engine is dead this process cannot serve: give its rows to others and leave."""
        while True:
            try:
                await self.engine.check()
            except EngineDead as error:
                log.error("engine died: %s", error)
                threading.Thread(target=self._leave, name="leave").start()
                return
            await asyncio.sleep(0.25)

    def _leave(self) -> None:
        self.is_draining = True
        with self.slots.lock:
            aboard = [live.generation for live in list(self.live.values())]
            try:
                claims.hand_back(self.worker, aboard, engine_died=True)
                claims.retire(self.worker)
            except (OperationalError, InterfaceError) as error:
                log.error("not handed back (leases will lapse): %s", error)
            finally:
                logging.shutdown()
                os._exit(ENGINE_DIED)

    def _call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # -- one generation: in a pool thread ------------------------------------------------------------------

    def serve(self, band: int | None = None, *, direct: bool = False) -> None:
        """Claim and run until nothing may start here: what a ticket does.

        `band`: of the row that the ticket is for. `direct`: it is for this worker, which starts as much as fits.
        """
        if direct:
            self.slots.called()
        if not self.slots.has_room(band):
            is_refused = True
        else:
            generation, is_refused = self.slots.take(may_fill=direct)
            if generation is not None:
                self._carry(self.live[generation.pk])
        if is_refused and not direct:
            self.slots.pass_on(band)

    def _carry(self, live: Live) -> None:
        """Run a claimed generation, and each that follows it in its slot; write their ends."""
        work = self._begin(live)
        while True:
            following = None
            try:
                try:
                    ending = work.result()
                finally:
                    self.slots.free(live)
                try:
                    # The next one runs while this one's end is written: a slot is free for as long as a claim takes.
                    generation, _ = self.slots.take(may_fill=True)
                    if generation is not None:
                        following = self.live[generation.pk]
                        work = self._begin(following)
                finally:
                    with live.lines():
                        self._conclude(live, ending)
            except Exception:
                # Its lease lapses, and another worker takes it up; what follows it is carried on.
                log.exception("%s was not brought to its end", live.generation.pk)
            finally:
                self.slots.forget(live)
            if following is None:
                return
            live = following

    def _begin(self, live: Live) -> Future[Ending | None]:
        with live.lines():  # which the task on the loop inherits
            log.info("starts: attempt %d, %d prompt tokens", live.generation.attempt, live.generation.prompt_tokens)
            return self._call(self._run(live))

    def may_start(self) -> bool:
        """Whether this worker serves, is to go on, and knows that it is not given up."""
        return not self.is_draining and self.worker.state == Worker.State.READY and self.keeper.lease_holds()

    def _conclude(self, live: Live, ending: Ending | None) -> None:
        """Write the end into the row, or hand it back; while the database is away, the keeper says when to retry."""
        while not live.is_stale:
            try:
                if ending is None:
                    self._hand_back(live.generation)
                    log.info("handed back after %d tokens", live.emitted)
                elif claims.finish(live.generation, ending):
                    seconds = monotonic() - live.began_at
                    log.info("ends: %s, %d tokens, %.1f s", ending.finish_reason, live.emitted, seconds)
                else:
                    log.info("%s ended elsewhere", live.generation.pk)
                return
            except (OperationalError, InterfaceError) as error:
                log.warning("finish of %s waits for the database: %s", live.generation.pk, error)
            finally:
                close_old_connections()
            if not self.keeper.wait_for_renewal():
                log.error("%s not finished; its lease will lapse", live.generation.pk)
                return

    def _hand_back(self, generation: Generation) -> None:
        """Threads that come at the same time, as when this worker is told to stop, are served by one statement."""
        self._leaving.append(generation)
        with self._handing_back:
            batch = list(self._leaving)
            if generation in batch:
                claims.hand_back(self.worker, batch)
                del self._leaving[: len(batch)]

    # -- on the loop ---------------------------------------------------------------------------------------

    async def _run(self, live: Live) -> Ending | None:
        return await Attempt(self, live).run(is_cancelled=live.generation.pk in self._early_cancels)

    def may_publish(self) -> bool:
        """False while this worker's own lease is overdue: another may have taken over."""
        return self.keeper.lease_holds()

    # -- cancelling -----------------------------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        if isinstance(message, Cancel):
            self.cancel(message.generation)
        elif isinstance(message, Drain) and message.worker == self.worker.pk:
            log.info("asked to drain")
            self.is_draining = True
            os.kill(os.getpid(), signal.SIGTERM)  # Celery's warm shutdown, which drains this host; see worker.py

    def cancel(self, generation: UUID) -> None:
        """Abort it in the engine; on the loop thread. One that is not here yet is remembered."""
        live = self.live.get(generation)
        if live is None or live.task is None:
            self._early_cancels[generation] = None
            if len(self._early_cancels) > 1000:
                self._early_cancels.popitem(last=False)
        elif not live.is_cancelled:
            live.is_cancelled = True
            live.task.cancel()

    def answers(self, within_s: float) -> bool:
        """Whether the loop thread turns."""
        try:
            self._call(asyncio.sleep(0)).result(within_s)
        except TimeoutError:
            return False
        return True

    def on_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Run a callback on the loop thread, soon."""
        self._loop.call_soon_threadsafe(callback, *arguments)

    def mute(self, lost: Mapping[UUID, Progress]) -> None:
        """From now on, nothing more is published of these attempts; on any thread."""
        for generation, step in lost.items():
            live = self.live.get(generation)
            if live is not None and live.generation.attempt == step.attempt:
                live.is_stale = True

    def lose(self, generation: UUID, attempt: int) -> None:
        """A later attempt has the row, here or elsewhere: stop at once, say nothing; on the loop thread."""
        live = self.live.get(generation)
        if live is not None and live.generation.attempt == attempt:
            live.appended(-1)
            if live.task is not None:
                live.task.cancel()
