"""The rows that wait, as the scheduler sees them: heads of the users' queues, places, and how long the queue is.

Order and counters are those of inference.scheduling. Raw SQL: each of these is one statement whose cost counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models.expressions import RawSQL

from inference.models import Generation, Worker
from inference.scheduling import OUTPUT_WEIGHT, PROMPT_WEIGHT, Waiting

HEADS_PER_BAND = 64  # candidates that a claim looks at, of each band: the least served users
AGED_HEADS = 8  # and those that have waited longest
TYPICAL_OUTPUT = 500  # tokens; most grants are never used up, and only order is wanted

COUNTER = """
greatest(g.floor, coalesce((SELECT s.tokens FROM inference_served s
                            WHERE s.user_id = g.user_id AND s.model_id = g.model_id AND s.band = g.band), 0))
"""
# The function is in the migration 0006: its plan is kept, and pinned to the index generation_queue. A plan that the
# planner made while the table was small would scan, for each user, the flood that came since; and planning costs five
# times what the query does.
HEADS = "SELECT * FROM inference_heads(%(model)s, %(heads)s, %(aged)s)"

# A user's rows one behind the other, as if each were served TYPICAL_OUTPUT; then by band and counter, as pick does.
PLACES = f"""
SELECT id, place FROM (
    SELECT id, row_number() OVER (ORDER BY band DESC, tag, created_at, id) AS place FROM (
        SELECT g.id, g.band, g.created_at, {COUNTER} + coalesce(sum(
                   (g.prompt_tokens * {PROMPT_WEIGHT} + least(g.grant, {TYPICAL_OUTPUT}) * {OUTPUT_WEIGHT}) / g.weight
               ) OVER (PARTITION BY g.band, g.user_id ORDER BY g.created_at, g.id
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS tag
        FROM inference_generation g
        WHERE g.model_id = %(model)s AND g.status = 'WAITING' AND NOT g.cancel_requested
    ) AS tagged
) AS placed WHERE id = ANY(%(ids)s)
"""  # noqa: S608

# Who waits in a band or above it, and of those who would go before one more of this user: all of the higher bands,
# and of each user in the band no more than this user has (users take turns).
QUEUE = """
SELECT coalesce(sum(n), 0)::int, coalesce(sum(CASE WHEN band > %(band)s THEN n ELSE least(n, mine + 1) END), 0)::int,
       coalesce(extract(epoch FROM clock_timestamp() - min(oldest)), 0)::float8
FROM (
    SELECT band, user_id, count(*) AS n, min(created_at) AS oldest,
           coalesce(max(count(*) FILTER (WHERE user_id = %(user)s AND band = %(band)s)) OVER (), 0) AS mine
    FROM inference_generation
    WHERE model_id = %(model)s AND status = 'WAITING' AND NOT cancel_requested AND band >= %(band)s
    GROUP BY band, user_id
) AS users
"""


# Inserts near the end of a model's queue go one by one.
PLACE_LOCK = "SELECT pg_advisory_xact_lock(1364346213, hashtext(%(model)s))::text"
WAITING = """
SELECT count(*) FROM (
    SELECT 1 FROM inference_generation
    WHERE model_id = %(model)s AND status = 'WAITING' AND NOT cancel_requested AND band >= %(band)s LIMIT %(depth)s
) AS waiting
"""


@dataclass(frozen=True)
class Queue:
    """What waits in a band of a model and above it."""

    waiting: int
    ahead: int  # of one more request of the user who asks
    oldest_s: float = field(default=0.0, compare=False)  # how long the first one has waited


def heads(worker: Worker, warm: frozenset[UUID]) -> list[Waiting]:
    """What a worker may choose from. `warm`: conversations whose prefix its cache is likely to hold."""
    with connection.cursor() as cursor:
        cursor.execute(HEADS, {"model": worker.model_id, "heads": HEADS_PER_BAND, "aged": AGED_HEADS})
        rows = cursor.fetchall()
    return [
        Waiting(pk, user, band, tokens, waited, inf if boost is None else boost, counter, suspect, affinity in warm)
        for pk, user, band, tokens, suspect, waited, boost, affinity, counter in rows
    ]


def places(model: str, ids: Sequence[UUID]) -> dict[UUID, int]:
    """Place in the queue (1 = next) of those of `ids` that wait for the model."""
    with connection.cursor() as cursor:
        cursor.execute(PLACES, {"model": model, "ids": list(ids)})
        return dict(cursor.fetchall())


def queue_before(model: str, band: int, user_id: UUID) -> Queue:
    """The queue that one more request of this user would join."""
    with connection.cursor() as cursor:
        cursor.execute(QUEUE, {"model": model, "band": band, "user": user_id})
        return Queue(*cursor.fetchone())


def take_place(model: str, band: int, depth: int) -> bool:
    """Whether one more row of this band may be inserted in this transaction, so that never more than `depth` wait."""
    values: dict[str, Any] = {"model": model, "band": band, "depth": depth}
    with connection.cursor() as cursor:
        cursor.execute(PLACE_LOCK, values)
        cursor.execute(WAITING, values)  # a statement of its own: it sees what was committed before the lock was given
        (count,) = cursor.fetchone()
    return bool(count < depth)


def clock(model: str, band: int) -> RawSQL:
    """The band's clock, as a value for the INSERT of a generation."""
    return RawSQL(
        "coalesce((SELECT tokens FROM inference_queueclock WHERE model_id = %s AND band = %s), 0)", [model, band]
    )


def stale(model: str, older_than_s: float) -> int:
    """How many generations of a model have waited for longer than this: their tickets may be lost."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM (SELECT 1 FROM inference_generation WHERE model_id = %s AND status = 'WAITING'"
            " AND created_at < clock_timestamp() - make_interval(secs => %s) LIMIT 1000) AS stale",
            [model, older_than_s],
        )
        return int(cursor.fetchone()[0])


def count_waiting(model: str, limit: int) -> int:
    """How many generations wait for a model, counted up to `limit`."""
    return Generation.objects.filter(model_id=model, status=Generation.Status.WAITING)[:limit].count()
