"""Celery tasks: the ticket of GPU workers, and what the side worker does on the beat."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from time import monotonic

from celery import shared_task
from django.conf import settings
from django.db import DatabaseError
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now
from redis.exceptions import RedisError

from billing import counters, truth
from billing.counters import Held
from billing.models import User
from inference import claims, leftovers, metrics
from inference.abandonment import cancel_unfollowed
from inference.endings import end_waiting, settle_limits
from inference.models import Generation, Worker
from inference.tickets import TICKET
from inference.unbroken import Unbroken
from inference.worker import hosts

log = logging.getLogger(__name__)
Status = Generation.Status
UNWRITTEN_S = 60.0  # a reservation may be that old before its generation is written
PURGED_AT_ONCE = 20_000
KEY_KEPT = timedelta(hours=24)  # how long a repeated request is recognised
_hostless = Unbroken(10.0)  # as this process sees it
_reachable = Unbroken(10.0)  # likewise: the database


@shared_task(name=TICKET)
def ticket(band: int | None = None, *, direct: bool = False) -> None:
    """One more generation waits: serve until nothing may start here (see EngineHost.serve).

    A worker that drains has no host any more; the others have tickets of their own.
    """
    for host in hosts():
        host.serve(band, direct=direct)


def _live_workers() -> Q:
    return Q(lease_until__gt=Now())


def _living_are_known() -> bool:
    """False just after an outage of the database, which workers that live need a moment to tell so."""
    try:
        Worker.objects.exists()
    except DatabaseError:
        _reachable.look(False, monotonic())
        raise
    return _reachable.look(True, monotonic()) >= settings.LEASE_S


@shared_task(name="inference.expire_unserved")
def expire_unserved() -> int:
    """End what has waited WAIT_WITHOUT_WORKER seconds while no worker of its model lived; returns how many."""
    if not _living_are_known():
        return 0
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


@shared_task(name="inference.cancel_unfollowed_waiting")
def cancel_unfollowed_waiting() -> int:
    """For what waits, what the keeper of a worker does for what it runs; returns how many."""
    waiting = Generation.objects.filter(status=Status.WAITING, cancel_requested=False)
    return cancel_unfollowed(list(waiting.only("pk", "purpose", "affinity", "model_id", "status")[:10_000]))


@shared_task(name="inference.reap_without_hosts")
def reap_without_hosts() -> int:
    """What every host does each second, when there has been no host for a lease's time.

    After an outage of the database, those that live need a moment to say so.
    """
    try:
        has_host = Worker.objects.filter(_live_workers()).exclude(state=Worker.State.GONE).exists()
    except DatabaseError:
        _hostless.look(False, monotonic())
        raise
    if _hostless.look(not has_host, monotonic()) < settings.LEASE_S:
        return 0
    return claims.reap()


@shared_task(name="inference.purge")
def purge() -> int:
    """Forget after the replay window what is people's own: prompts, texts, token logs, and sampling (stop strings,
    schemas). And workers that left long ago."""
    old = Generation.objects.filter(finished_at__lt=Now() - timedelta(seconds=settings.REPLAY_S), purged_at=None)
    ids = list(old.values_list("pk", flat=True)[:PURGED_AT_ONCE])
    try:
        # Most have expired; where the store was away when they ended, or is back with old data, nobody said when to.
        leftovers.forget(ids)
    except RedisError as error:
        log.warning("token logs of %s generations are not deleted yet: %s", len(ids), error)
        ids = []
    purged = Generation.objects.filter(pk__in=ids).update(prompt=b"", text="", sampling={}, purged_at=Now())
    metrics.rows_purged.inc(purged)
    Generation.objects.filter(client_key__isnull=False, finished_at__lt=Now() - KEY_KEPT).update(client_key=None)
    if _living_are_known():
        Worker.objects.filter(lease_until__lt=Now() - timedelta(hours=1)).delete()
    return purged


def _chunks(found: list[Held], size: int) -> Iterator[list[Held]]:
    return (found[i : i + size] for i in range(0, len(found), size))


@shared_task(name="inference.sweep_reservations")
def sweep_reservations() -> int:
    """Settle reservations whose generation has ended, and give back those whose was never written; returns how many."""
    settled = 0
    try:
        for chunk in _chunks(counters.held(older_than_s=UNWRITTEN_S), 500):
            rows = Generation.objects.filter(pk__in=[one.generation_id for one in chunk]).defer("prompt", "text")
            found = {row.pk: row for row in rows}
            for one in chunk:
                row = found.get(one.generation_id)
                if row is None:
                    counters.release(one.subjects, one.generation_id)
                elif not row.is_open:
                    settle_limits(row)
                settled += row is None or not row.is_open
    except RedisError as error:
        log.warning("reservations not swept: %s", error)
    metrics.reservations_swept.inc(settled)
    if settled:
        log.warning("%s reservations were left over and are settled", settled)
    return settled


@shared_task(name="inference.reconcile_limits")
def reconcile_limits() -> int:
    """Hold the counters against the database; windows that count something else are filled anew. Returns how many."""
    try:
        wrong = truth.drifted()
        counters.forget(wrong)
    except RedisError as error:
        log.warning("counters not reconciled: %s", error)
        return 0
    metrics.windows_drifted.inc(len(wrong))
    if wrong:
        log.error("%s windows of limits had drifted and are filled anew: %s", len(wrong), ", ".join(wrong[:10]))
    return len(wrong)
