"""Whether a worker or beat lives, and whether it can work: what its endpoint answers (PROBE_PORT).

Alive means that its loops turn; while a store is away they wait for it, and a restart would not help. Ready means that
it takes work now: its engine is loaded, the stores answer, and it is not draining. The web's are in chatsite.health.
"""

import logging
from time import monotonic
from typing import Any, ClassVar

from celery import bootsteps
from django.conf import settings

from chatsite import endpoint
from chatsite.beat import Scheduler
from inference import worker

log = logging.getLogger(__name__)

PULSE_S = 1.0
STILL_S = 60.0  # a loop that has not turned for so long hangs
SENT_S = 30.0  # beat sends something every 2 seconds


class Life:
    """Where a Celery worker is in its life."""

    def __init__(self) -> None:
        self.is_draining = False
        self._pulse: float | None = None  # None: it does not consume, or waits for its broker

    def alive(self) -> tuple[bool, dict[str, Any]]:
        loops = {"consumer": self._pulse is None or monotonic() < self._pulse + STILL_S}
        for host in worker.hosts():
            loops |= {"engine": host.answers(within_s=5.0), "keeper": monotonic() < host.keeper.turned_at + STILL_S}
        return all(loops.values()), {name: "turns" if turns else "hangs" for name, turns in loops.items()}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Overdue: its leases could not be renewed in time, so others may have taken over its generations."""
        state = "draining" if self.is_draining else "starting" if self._pulse is None else "ready"
        if any(not host.may_start() for host in worker.hosts()):
            state = "draining" if self.is_draining else "overdue"
        return _with_stores(state == "ready", {"state": state})

    def beats(self, consumer: Any) -> None:
        self._pulse = monotonic()
        consumer.timer.call_repeatedly(PULSE_S, self._beat)

    def _beat(self) -> None:
        self._pulse = monotonic()

    def waits(self) -> None:
        self._pulse = None


life = Life()


class PulseStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """A pulse on the consumer's loop, from when it takes tasks until its connection is lost."""

    requires: ClassVar = {"celery.worker.consumer.tasks:Tasks"}

    def start(self, consumer: Any) -> None:
        life.beats(consumer)

    def stop(self, consumer: Any) -> None:
        life.waits()

    shutdown = stop


def serve_worker() -> None:
    """The endpoint of a Celery worker, from before its engine loads."""
    _serve(life.alive, life.ready)


def serve_beat(scheduler: Scheduler) -> None:
    """The endpoint of beat."""

    def alive() -> tuple[bool, dict[str, Any]]:
        turns = monotonic() < scheduler.turned_at + STILL_S
        return turns, {"scheduler": "turns" if turns else "hangs"}

    def ready() -> tuple[bool, dict[str, Any]]:
        sends = monotonic() < scheduler.sent_at + SENT_S
        return sends, {"ready": sends, "state": "ready" if sends else "nothing was sent for a while"}

    _serve(alive, ready)


def _serve(alive: endpoint.Check, ready: endpoint.Check) -> None:
    if not settings.PROBE_PORT:
        return
    try:
        endpoint.serve(settings.HOST, settings.PROBE_PORT, alive=alive, ready=ready)
    except OSError as error:
        raise SystemExit(f"Cannot listen on {settings.HOST}:{settings.PROBE_PORT} (PROBE_PORT): {error}") from None


def _with_stores(holds: bool, facts: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    from chatsite.health import stores  # needs Django's models, which are loaded by now

    found = stores()
    holds = holds and all(answer == "ok" for answer in found.values())
    return holds, {"ready": holds, **facts, **found}
