"""Celery tasks: the ticket of GPU workers, and what the side worker does on the beat."""

import logging
from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now
from redis.exceptions import RedisError

from billing import counters
from billing.models import User
from inference import claims
from inference.endings import end_waiting
from inference.models import Generation, Worker
from inference.tickets import TICKET
from inference.worker import current_host

log = logging.getLogger(__name__)
Status = Generation.Status
KEY_KEPT = timedelta(hours=24)  # how long a repeated request is recognised


@shared_task(name=TICKET)
def ticket(band: int | None = None, *, direct: bool = False) -> None:
    """One more generation waits: serve until nothing may start here (see EngineHost.serve)."""
    current_host().serve(band, direct=direct)


def _live_workers() -> Q:
    return Q(lease_until__gt=Now())


@shared_task(name="inference.expire_unserved")
def expire_unserved() -> int:
    """End what has waited WAIT_WITHOUT_WORKER seconds while no worker of its model lived; returns how many."""
    patience = timedelta(seconds=settings.WAIT_WITHOUT_WORKER_S)
    recent = Worker.objects.filter(model=OuterRef("model"), lease_until__gt=Now() - patience)
    # Nobody claims what a deleted account was about to ask.
    is_orphan = ~Exists(User.objects.filter(pk=OuterRef("user_id")))
    unserved = Generation.objects.filter(
        ~Exists(recent) | is_orphan, status=Status.WAITING, created_at__lt=Now() - patience
    )
    ended = 0
    for generation in unserved[:1000]:
        ended += end_waiting(
            generation,
            status=Status.FAILED,
            finish_reason="error",
            code="no_worker",
            message="No server is running this model at the moment.",
        )
    return ended


@shared_task(name="inference.reap_without_hosts")
def reap_without_hosts() -> int:
    """What every host does each second, when there is no host."""
    if Worker.objects.filter(_live_workers()).exclude(state=Worker.State.GONE).exists():
        return 0
    return claims.reap()


@shared_task(name="inference.purge")
def purge() -> int:
    """Forget prompts and streamed texts after the replay window, and workers that left long ago."""
    old = Generation.objects.filter(finished_at__lt=Now() - timedelta(seconds=settings.REPLAY_S), purged_at=None)
    purged = old.update(prompt=b"", text="", purged_at=Now())
    Generation.objects.filter(client_key__isnull=False, finished_at__lt=Now() - KEY_KEPT).update(client_key=None)
    Worker.objects.filter(lease_until__lt=Now() - timedelta(hours=1)).delete()
    return purged


@shared_task(name="inference.sweep_reservations")
def sweep_reservations() -> int:
    """Give back reservations whose generation has ended, or was never written; returns how many."""
    released = 0
    try:
        for user_id in counters.users_with_reservations():
            held = set(counters.open_generations(user_id))
            opened = set(
                Generation.objects.filter(pk__in=held, status__in=Generation.OPEN).values_list("pk", flat=True)
            )
            # One that is a moment old may not be written yet: it is looked at again in the next sweep.
            left = counters.left_twice(user_id, held - opened)
            counters.release(user_id, left)
            released += len(left)
    except RedisError as error:
        log.warning("reservations not swept: %s", error)
    return released
