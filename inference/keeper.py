"""The keeper of a worker: once a second it renews leases, takes over what dead workers left, and finds lost tickets."""

import logging
import threading
from time import monotonic
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections

from inference import claims, metrics
from inference.abandonment import cancel_unfollowed
from inference.engine import Load
from inference.pace import Pace
from inference.queueing import reserved_shares
from inference.unbroken import Unbroken

if TYPE_CHECKING:
    from inference.host import EngineHost

log = logging.getLogger(__name__)

STEP_S = 1.0
LOOK_S = 1.8  # every other step; whoever is not followed must be looked at every 4 s
RETRY_S = 0.1


class Keeper:
    """A thread beside the host. Its failures are logged and tried again: leases say what they mean."""

    def __init__(self, host: "EngineHost") -> None:
        self._host = host
        self._stopping = threading.Event()
        self._renewed = threading.Condition()
        self._renewed_at = 0.0
        self._pace = Pace()
        # Others were kept from renewing as long as this one was: a longer pause may have cost them their leases.
        # With the shortest leases that is hardly more than a step, which must not count as a pause.
        self._reachable = Unbroken(max(settings.LEASE_S - STEP_S, 1.5 * STEP_S))
        self._load = Load()
        self._looked_at = 0.0
        self.turned_at = monotonic()  # the latest turn, whether or not the database answered
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No renewal follows the return of this call."""
        self._stopping.set()
        with self._renewed:
            self._renewed.notify_all()
        self._thread.join()

    def lease_holds(self) -> bool:
        """Whether the last renewal is younger than a lease: nobody else may have taken over."""
        return monotonic() < self._renewed_at + settings.LEASE_S

    def wait_for_renewal(self) -> bool:
        """Block until the database answers the next renewal; False when the keeper stops."""
        with self._renewed:
            if not self._stopping.is_set():
                self._renewed.wait()
        return not self._stopping.is_set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.turned_at = began = monotonic()
            pause = STEP_S
            try:
                self._step(began)
            except (OperationalError, InterfaceError) as error:
                # After a restart of the database each pooled connection fails once: not a second each, with leases.
                self._reachable.look(False, monotonic())
                pause = RETRY_S
                metrics.checkpoints_missed.labels(self._host.worker.model_id, "failed").inc()
                log.warning("database out of reach: %s", error)
            except Exception:
                log.exception("keeper step failed")
            finally:
                close_old_connections()
            self._stopping.wait(max(0.05, pause - (monotonic() - began)))

    def _step(self, began: float) -> None:
        host = self._host
        progress = {pk: live.progress() for pk, live in list(host.live.items())}
        host.worker.service_s = self._pace.step(began, len(host.slots), host.slots.ended)
        load = host.engine.load()
        renewed = claims.renew(host.worker, progress, load)
        # Ended meanwhile by our own threads, or taken by someone else. Said before the renewal is: with it, this
        # worker may publish again.
        lost = {pk: step for pk, step in progress.items() if pk not in renewed.kept}
        host.mute(lost)
        self._count(began, load)
        reachable_s = self._reachable.look(True, monotonic())
        self._renewed_at = began
        with self._renewed:
            self._renewed.notify_all()
        for pk in renewed.cancelled:
            host.on_loop(host.cancel, pk)
        for pk, step in lost.items():
            host.on_loop(host.lose, pk, step.attempt)
        if lost:
            claims.refund_deaths(lost)
        host.slots.return_unheard()
        if reachable_s > settings.LEASE_S:
            claims.reap()
        if began - self._looked_at > LOOK_S:
            self._look_around()
            self._looked_at = began
        host.slots.call()

    def _look_around(self) -> None:
        """What may be a few seconds old."""
        host = self._host
        host.slots.reserved = reserved_shares()
        host.slots.peers = claims.peers(host.worker)
        claims.end_overdue()
        cancel_unfollowed([live.generation for live in list(host.live.values())])

    def _count(self, began: float, load: Load) -> None:
        """This renewal, and what the engine did since the last one."""
        model, late = self._host.worker.model_id, began - self._renewed_at - STEP_S
        metrics.checkpoint.labels(model).observe(monotonic() - began)
        if self._renewed_at and late > 1.0:
            how = "overdue" if late + STEP_S > settings.LEASE_S else "late"
            metrics.checkpoints_missed.labels(model, how).inc()
        metrics.prefix_queries.labels(model).inc(load.prefix_queries - self._load.prefix_queries)
        metrics.prefix_hits.labels(model).inc(load.prefix_hits - self._load.prefix_hits)
        self._load = load
        self._host.gaps.observe(model)
