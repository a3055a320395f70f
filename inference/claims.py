"""What a worker does to generation rows: claim, renew, finish, hand back; and reaping those of dead workers.

Every change is one conditional UPDATE that names status, worker and attempt. Leases use the database's clock
alone. Raw SQL where one statement must both change rows and return them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q, Value
from django.db.models.functions import Now

from inference import metrics, waiting
from inference.charging import CHARGE_OUTPUT, CHARGE_START
from inference.endings import Ending, end, end_waiting
from inference.engine import Load
from inference.models import Generation, Worker
from inference.scheduling import Capacity, Running, Waiting, count_fitting, pick
from inference.tickets import send_tickets

Status = Generation.Status
LEASE = "clock_timestamp() + make_interval(secs => %(lease)s)"

# ruff: noqa: S608 - what is put into the statements are constants of ours
CLAIM = f"""
WITH taken AS (
    UPDATE inference_generation SET status = 'RUNNING', worker_id = %(worker)s, lease_until = {LEASE},
           started_at = coalesce(started_at, clock_timestamp())
    WHERE id IN (
        SELECT id FROM inference_generation
        WHERE id = ANY(%(ids)s) AND status = 'WAITING' AND NOT cancel_requested
        ORDER BY id FOR UPDATE SKIP LOCKED
    )
    RETURNING *
), {CHARGE_START}
SELECT * FROM taken
"""

# `was` is the row before this statement; only its worker changes what is read of it.
RENEW = f"""
WITH renewed AS (
    UPDATE inference_generation g
    SET completion_tokens = v.completion, cached_tokens = v.cached, frames = v.frames, lease_until = {LEASE}
    FROM unnest(%(ids)s::uuid[], %(attempts)s::int[], %(completion)s::int[], %(cached)s::int[], %(frames)s::int[])
         AS v(id, attempt, completion, cached, frames)
    JOIN inference_generation was ON was.id = v.id
    WHERE g.id = v.id AND g.attempt = v.attempt AND g.status = 'RUNNING' AND g.worker_id = %(worker)s
    RETURNING g.id, g.cancel_requested, g.user_id, g.model_id, g.band, g.weight,
              v.completion - was.completion_tokens AS produced
), {CHARGE_OUTPUT}
SELECT id, cancel_requested FROM renewed
"""

RENEW_WORKER = f"""
UPDATE inference_worker SET lease_until = {LEASE}, state = %(state)s, engine_pid = %(engine_pid)s,
       running = %(running)s, waiting = %(waiting)s, kv_usage = %(kv_usage)s, prefix_queries = %(prefix_queries)s,
       prefix_hits = %(prefix_hits)s, service_s = %(service_s)s
WHERE id = %(worker)s
"""

LAPSED = Q(status=Status.RUNNING, lease_until__lt=Now())


@dataclass(frozen=True)
class Progress:
    """How far a running generation has come; `frames`: what its log has for sure."""

    attempt: int
    completion_tokens: int
    cached_tokens: int
    frames: int = 0


@dataclass(frozen=True)
class Renewed:
    """The rows that are still this worker's, and which of them are to be cancelled."""

    kept: frozenset[UUID]
    cancelled: frozenset[UUID]


def register(worker: Worker) -> None:
    """Make a starting worker known; its first lease comes with its first renewal, by the database's clock."""
    worker.lease_until = Now()
    worker.save(force_insert=True)


def announce_ready(worker: Worker) -> None:
    """The engine is loaded: say so, and take up what waits."""
    worker.save(update_fields=["state", "engine_pid", "kv_tokens", "channel"])
    send_tickets(worker.model_id, min(worker.slots, waiting.stale(worker.model_id, 0)))


def peers(worker: Worker) -> list[str]:
    """Names of the other workers that serve this worker's model now."""
    others = Worker.objects.filter(model_id=worker.model_id, state=Worker.State.READY, lease_until__gt=Now())
    return list(others.exclude(pk=worker.pk).values_list("name", flat=True))


@dataclass(frozen=True)
class Claimed:
    """What a look at the queue gave: generations to run, and how many more would start here now.

    `is_refused`: something waits, and nothing may start here.
    """

    generations: list[Generation]
    more: int = 0
    is_refused: bool = False


def claim(
    worker: Worker, running: Sequence[Running], capacity: Capacity, warm: frozenset[UUID], starts: int, count: int = 1
) -> Claimed:
    """Take the `count` generations that go next, or as many as may start here now.

    `warm`: conversations whose prefix this worker's cache is likely to hold. Claims of one worker are the
    caller's to serialise; between workers the conditional UPDATE decides, and the loser picks again.
    """
    while True:
        heads = waiting.heads(worker, warm)
        chosen, held = _choose(heads, running, capacity, starts, count)
        if not chosen:
            return Claimed([], is_refused=bool(heads))
        clocks = {choice.band: min(head.counter for head in heads if head.band == choice.band) for choice in chosen}
        values = {
            "worker": worker.pk,
            "ids": [choice.id for choice in chosen],
            "lease": settings.LEASE_S,
            "bands": list(clocks),
            "clocks": list(clocks.values()),
        }
        taken = list(Generation.objects.raw(CLAIM, values))
        if taken:
            left = (head for head in heads if head not in chosen)
            return Claimed(taken, count_fitting(left, held, capacity))


def _choose(
    heads: Sequence[Waiting], running: Sequence[Running], capacity: Capacity, starts: int, count: int
) -> tuple[list[Waiting], list[Running]]:
    """Up to `count` picks one after the other, and what runs then."""
    left, held = list(heads), list(running)
    chosen: list[Waiting] = []
    while len(chosen) < count and (choice := pick(left, held, capacity, starts + len(chosen))) is not None:
        left.remove(choice)
        chosen.append(choice)
        held.append(Running(choice.user_id, choice.band, choice.tokens, choice.is_suspect))
    return chosen, held


def renew(worker: Worker, progress: Mapping[UUID, Progress], load: Load) -> Renewed:
    """Renew the leases of a worker and of all its generations, and learn what is to be cancelled.

    A generation missing from `kept` belongs to someone else now.
    """
    steps = list(progress.values())
    values: dict[str, Any] = {"worker": worker.pk, "lease": settings.LEASE_S}
    with connection.cursor() as cursor:
        figures = {"state": worker.state, "engine_pid": worker.engine_pid, "service_s": worker.service_s}
        cursor.execute(RENEW_WORKER, values | figures | load.__dict__)
        if not cursor.rowcount:
            register(worker)  # somebody has deleted it, but it lives
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
                "frames": [step.frames for step in steps],
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
        moved = Generation.objects.filter(
            pk__in=[generation.pk for generation in generations], worker=worker, status=Status.RUNNING
        ).update(
            **_waiting_again(),
            is_suspect=Q(is_suspect=True) | Q(Value(engine_died)),
            deaths=F("deaths") + int(engine_died and len(generations) == 1),
        )
    metrics.failovers.labels(worker.model_id, "engine_dead" if engine_died else "handed_back").inc(moved)
    _settle_waiting([generation.pk for generation in generations])
    send_tickets(worker.model_id, len(generations))


def _waiting_again() -> dict[str, Any]:
    return {"status": Status.WAITING, "worker": None, "lease_until": None, "attempt": F("attempt") + 1}


def reap(*, limit: int = 100) -> int:
    """Take generations whose lease has lapsed from their dead workers; returns how many.

    They wait again as the next attempt; whoever has seen two workers die, alone: it may be what killed them, and
    those who were aboard with it must not die a third time. The caller must have reached the database for one lease
    length: nobody judges a lease after an outage that kept its holder from renewing it.
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
        Generation.objects.filter(pk__in=ids).update(
            **_waiting_again(), deaths=F("deaths") + 1, is_suspect=Q(is_suspect=True) | Q(deaths__gte=1)
        )
    _settle_waiting(ids)
    for model, count in Counter(model for _, model in lapsed).items():
        metrics.failovers.labels(model, "lease_lapsed").inc(count)
        send_tickets(model, count)
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


def end_overdue(*, limit: int = 100) -> int:
    """End what has waited longer than its plan allows and was never started; returns how many."""
    overdue = Generation.objects.filter(status=Status.WAITING, wait_until__lt=Now(), started_at=None)
    return sum(
        end_waiting(
            generation,
            status=Status.FAILED,
            finish_reason="error",
            code="waited_too_long",
            message="Too many people were ahead of you for too long; please try again.",
        )
        for generation in overdue.order_by("wait_until")[:limit]
    )


def retire(worker: Worker) -> None:
    """The worker has left; it lives no more from now on."""
    Worker.objects.filter(pk=worker.pk).update(state=Worker.State.GONE, lease_until=Now(), running=0, waiting=0)
