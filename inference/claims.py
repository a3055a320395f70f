"""What a worker does to generation rows: claim, renew, finish, hand back; and reaping those of dead workers.

Every change is one conditional UPDATE that names status, worker and attempt. Leases use the database's clock
alone. Raw SQL where one statement must both change rows and return them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Max, Q
from django.db.models.functions import Now

from billing.models import Plan
from inference.endings import Ending, end, end_waiting
from inference.engine import Load
from inference.models import Generation, Worker
from inference.scheduling import Capacity, Running, Waiting, pick
from inference.tickets import send_tickets

Status = Generation.Status
LEASE = "clock_timestamp() + make_interval(secs => %(lease)s)"

# The oldest waiting generation of each user and band.
HEADS = """
SELECT DISTINCT ON (g.user_id, g.band) g.id, g.user_id, g.band, g.prompt_tokens + g.grant, g.is_suspect,
       extract(epoch FROM clock_timestamp() - g.created_at)::float8, p.max_wait_boost_s,
       coalesce(s.tokens, 0), g.affinity
FROM inference_generation g
JOIN billing_user u ON u.id = g.user_id
JOIN billing_plan p ON p.id = u.plan_id
LEFT JOIN inference_served s ON s.user_id = g.user_id AND s.model_id = g.model_id
WHERE g.model_id = %(model)s AND g.status = 'WAITING' AND NOT g.cancel_requested
ORDER BY g.user_id, g.band, g.created_at
"""

# ruff: noqa: S608 - the only thing put into the statements is the constant above
CLAIM = f"""
UPDATE inference_generation SET status = 'RUNNING', worker_id = %(worker)s, lease_until = {LEASE},
       started_at = coalesce(started_at, clock_timestamp())
WHERE id = %(id)s AND status = 'WAITING' AND NOT cancel_requested
RETURNING *
"""

RENEW = f"""
UPDATE inference_generation g
SET completion_tokens = v.completion, cached_tokens = v.cached, lease_until = {LEASE}
FROM unnest(%(ids)s::uuid[], %(attempts)s::int[], %(completion)s::int[], %(cached)s::int[])
     AS v(id, attempt, completion, cached)
WHERE g.id = v.id AND g.attempt = v.attempt AND g.status = 'RUNNING' AND g.worker_id = %(worker)s
RETURNING g.id, g.cancel_requested
"""

RENEW_WORKER = f"""
UPDATE inference_worker SET lease_until = {LEASE}, state = %(state)s, engine_pid = %(engine_pid)s,
       running = %(running)s, waiting = %(waiting)s, kv_usage = %(kv_usage)s, prefix_queries = %(prefix_queries)s,
       prefix_hits = %(prefix_hits)s
WHERE id = %(worker)s
"""

LAPSED = Q(status=Status.RUNNING, lease_until__lt=Now())


@dataclass(frozen=True)
class Progress:
    """How far a running generation has come."""

    attempt: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Renewed:
    """The rows that are still this worker's, and which of them are to be cancelled."""

    kept: frozenset[UUID]
    cancelled: frozenset[UUID]


def register(worker: Worker) -> None:
    """Make a starting worker known, with its first lease."""
    worker.save(force_insert=True)


def announce_ready(worker: Worker) -> None:
    """The engine is loaded: say so, and take up what waits."""
    worker.save(update_fields=["state", "engine_pid", "kv_tokens", "channel"])
    send_tickets(worker.model_id, min(worker.slots, stale_waiting(worker.model_id, 0)))


def reserved_shares() -> dict[int, float]:
    """Reserved share of the slots by priority band, from the plans."""
    shares = Plan.objects.filter(reserved_share__gt=0).values_list("band").annotate(share=Max("reserved_share"))
    return dict(shares)


def claim(
    worker: Worker,
    running: Sequence[Running],
    capacity: Capacity,
    warm: frozenset[UUID],
    starts: int,
) -> Generation | None:
    """Take the generation that goes next, or None when nothing may start here now.

    `warm`: conversations whose prefix this worker's cache is likely to hold. Claims of one worker are the
    caller's to serialise; between workers the conditional UPDATE decides, and the loser picks again.
    """
    while True:
        with connection.cursor() as cursor:
            cursor.execute(HEADS, {"model": worker.model_id})
            heads = cursor.fetchall()
        waiting = [
            # What is ours (a negative band) is never aged: a title must not go before a person.
            Waiting(pk, user, band, tokens, waited, boost if band >= 0 else inf, suspect, affinity in warm)
            for pk, user, band, tokens, suspect, waited, boost, _, affinity in heads
        ]
        choice = pick(waiting, running, capacity, {head[1]: head[7] for head in heads}, starts)
        if choice is None:
            return None
        values = {"worker": worker.pk, "id": choice.id, "lease": settings.LEASE_S}
        for generation in Generation.objects.raw(CLAIM, values):
            return generation


def renew(worker: Worker, progress: Mapping[UUID, Progress], load: Load) -> Renewed:
    """Renew the leases of a worker and of all its generations, and learn what is to be cancelled.

    A generation missing from `kept` belongs to someone else now.
    """
    steps = list(progress.values())
    values: dict[str, Any] = {"worker": worker.pk, "lease": settings.LEASE_S}
    with connection.cursor() as cursor:
        figures = {"state": worker.state, "engine_pid": worker.engine_pid, **load.__dict__}
        cursor.execute(RENEW_WORKER, values | figures)
        if not progress:
            return Renewed(frozenset(), frozenset())
        cursor.execute(
            RENEW,
            values
            | {
                "ids": list(progress),
                "attempts": [step.attempt for step in steps],
                "completion": [step.completion_tokens for step in steps],
                "cached": [step.cached_tokens for step in steps],
            },
        )
        rows = cursor.fetchall()
    return Renewed(frozenset(pk for pk, _ in rows), frozenset(pk for pk, flagged in rows if flagged))


def finish(generation: Generation, ending: Ending) -> bool:
    """End a running generation of this attempt; False when it is no longer this worker's."""
    return end(generation, Status.RUNNING, ending)


def hand_back(worker: Worker, generations: Sequence[Generation], *, engine_died: bool = False) -> None:
    """Let other workers go on with these at once.

    `engine_died`: any of them may be the cause, so each runs alone next time; only one that was alone counts
    the death as its own. Flagged ones end as cancelled, and those with too many deaths as failed.
    """
    with transaction.atomic():
        Generation.objects.filter(
            pk__in=[generation.pk for generation in generations], worker=worker, status=Status.RUNNING
        ).update(
            **_waiting_again(),
            is_suspect=engine_died,
            deaths=F("deaths") + int(engine_died and len(generations) == 1),
        )
    _settle_waiting([generation.pk for generation in generations])
    send_tickets(worker.model_id, len(generations))


def _waiting_again() -> dict[str, Any]:
    return {"status": Status.WAITING, "worker": None, "lease_until": None, "attempt": F("attempt") + 1}


def reap(*, limit: int = 100) -> int:
    """Take generations whose lease has lapsed from their dead workers; returns how many.

    They wait again as the next attempt. The caller must have reached the database for one lease length: nobody
    judges a lease after an outage that kept its holder from renewing it.
    """
    with transaction.atomic():
        lapsed = list(
            Generation.objects.select_for_update(skip_locked=True, of=("self",))
            .filter(LAPSED)
            .values_list("pk", "model_id")[:limit]
        )
        if not lapsed:
            return 0
        ids = [pk for pk, _ in lapsed]
        Generation.objects.filter(pk__in=ids).update(**_waiting_again(), deaths=F("deaths") + 1)
    _settle_waiting(ids)
    for model in {model for _, model in lapsed}:
        send_tickets(model, sum(1 for _, other in lapsed if other == model))
    return len(ids)


REFUND = """
UPDATE inference_generation g SET deaths = deaths - 1
FROM unnest(%(ids)s::uuid[], %(attempts)s::int[]) AS v(id, attempt)
WHERE g.id = v.id AND g.attempt = v.attempt + 1 AND g.deaths > 0 AND g.status IN ('WAITING', 'RUNNING')
"""


def refund_deaths(lost: Mapping[UUID, Progress]) -> None:
    """Say that these, which others took over when this worker's lease lapsed, did not lose it to its death.

    A worker that is only late (a frozen or overloaded machine) must not use up its generations' attempts.
    """
    values: dict[str, Any] = {"ids": list(lost), "attempts": [step.attempt for step in lost.values()]}
    with connection.cursor() as cursor:
        cursor.execute(REFUND, values)


def _settle_waiting(ids: Sequence[UUID]) -> None:
    """End those that wait again but must not run again."""
    for generation in Generation.objects.filter(pk__in=ids, status=Status.WAITING):
        if generation.cancel_requested:
            end_waiting(generation, status=Status.CANCELLED, finish_reason="cancelled")
        elif generation.deaths >= settings.MAX_DEATHS:
            end_waiting(
                generation,
                status=Status.FAILED,
                finish_reason="error",
                code="worker_died",
                message="The server failed several times while writing this answer.",
            )


def stale_waiting(model: str, older_than_s: float) -> int:
    """How many generations of a model have waited for longer than this: their tickets may be lost."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM (SELECT 1 FROM inference_generation WHERE model_id = %s AND status = 'WAITING'"
            " AND created_at < clock_timestamp() - make_interval(secs => %s) LIMIT 1000) AS stale",
            [model, older_than_s],
        )
        return int(cursor.fetchone()[0])


def retire(worker: Worker) -> None:
    """The worker has left; it lives no more from now on."""
    Worker.objects.filter(pk=worker.pk).update(state=Worker.State.GONE, lease_until=Now(), running=0, waiting=0)
