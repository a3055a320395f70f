"""What the database says was used: windows are filled from it, and held against it."""

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection

from billing import counters, scripts
from billing.counters import Subjects, Unfilled, open_key, store, subject_of
from billing.limits import BUCKETS

MOST = 2000  # windows looked at in one reconciliation
FILL_TRIES = 10  # each takes some milliseconds, in which nothing may be admitted
# Entries are written when a generation ends, and count from when it was admitted: created_at is the later one.
ENDED = """
SELECT s.seconds,
       floor(extract(epoch FROM coalesce(e.admitted_at, e.created_at)) * 1000 / (s.seconds * 10))::bigint AS bucket,
       count(*), sum(e.prompt_tokens + e.completion_tokens)::bigint, NULL::uuid
FROM billing_ledgerentry e, unnest(%(seconds)s::bigint[]) AS s(seconds)
WHERE e.{column} = %(id)s AND e.kind = 'usage' AND e.purpose = 'chat' AND e.generation_id <> ALL(%(open)s::uuid[])
  AND e.created_at > to_timestamp(%(now)s) - make_interval(secs => s.seconds * 1.02 + 60)
GROUP BY 1, 2
"""
# In one statement with ENDED: what one of them sees booked, the other must have in its sums.
BOOKED = """
SELECT NULL::bigint, NULL::bigint, 0, NULL::bigint, generation_id FROM billing_ledgerentry
WHERE generation_id = ANY(%(candidates)s::uuid[]) AND kind = 'usage'
"""


@dataclass(frozen=True)
class OpenGrant:
    """An open generation and what it was granted; `tokens` with its prompt. `admitted_ms`: the store's clock."""

    generation_id: UUID
    subjects: Subjects
    admitted_ms: int
    tokens: int
    granted: int


Source = Callable[[str, UUID], Iterable[OpenGrant]]
_sources: list[Source] = []


def open_grants_from(source: Source) -> None:
    """Name the function that knows open generations, by a column and an id: they live in an app above this one."""
    _sources.append(source)


@dataclass(frozen=True)
class Used:
    """What counts for one subject: ended generations by length and bucket, open ones, and which of those asked for
    are booked."""

    ended: Mapping[int, Sequence[tuple[int, int, int]]]  # seconds → (bucket, requests, tokens)
    open: Sequence[OpenGrant]
    booked: Sequence[str]

    def total(self, seconds: int, now_ms: int) -> tuple[int, int]:
        """(requests, tokens) in a window of this length now."""
        first = now_ms // (seconds * 10) - BUCKETS
        rows = [row for row in self.ended.get(seconds, ()) if row[0] >= first]
        rows += [(0, 1, grant.tokens) for grant in self.open if grant.admitted_ms // (seconds * 10) >= first]
        return sum(row[1] for row in rows), sum(row[2] for row in rows)


def used(subject: str, seconds: Sequence[int], now_ms: int, candidates: Sequence[str] = ()) -> Used:
    """Read it. Open rows first: one that ends meanwhile is then found twice, and counts as open."""
    column, subject_id = subject_of(subject)
    grants = [grant for source in _sources for grant in source(column, subject_id)]
    ended: dict[int, list[tuple[int, int, int]]] = {}
    booked: list[str] = []
    values: dict[str, Any] = {
        "id": subject_id,
        "seconds": list(seconds),
        "now": now_ms / 1000,
        "open": [grant.generation_id for grant in grants],
        "candidates": list(candidates),
    }
    with connection.cursor() as cursor:
        cursor.execute(f"{ENDED.format(column=column)} UNION ALL {BOOKED}", values)
        for length, bucket, requests, tokens, generation_id in cursor.fetchall():
            if generation_id:
                booked.append(str(generation_id))
            else:
                ended.setdefault(length, []).append((bucket, requests, tokens))
    return Used(ended, grants, booked)


def fill(epoch: str, now_ms: int, missing: Sequence[tuple[str, int]]) -> None:
    """Fill windows, given as (subject, seconds); 0 seconds stand for a user's open reservations alone.

    Whoever is first fills; the counters take no admission on a window before. Raises redis.RedisError, and Unfilled
    when those who do not know of a window yet admit all the time.
    """
    by_subject: dict[str, list[int]] = {}
    for subject, seconds in missing:
        by_subject.setdefault(subject, []).extend([seconds] if seconds else [])
    for subject, lengths in by_subject.items():
        for _ in range(FILL_TRIES):
            if _fill(epoch, now_ms, subject, lengths) != "again":
                break
        else:
            raise Unfilled(subject)


def _fill(epoch: str, now_ms: int, subject: str, lengths: Sequence[int]) -> str:
    """Read the truth and offer it to scripts.FILL; its answer."""
    held: dict[bytes, bytes] = store().hgetall(open_key(epoch, subject))  # type: ignore[assignment]
    seen = held.pop(b"", b"")
    candidates = [name.decode() for name in held]
    found = used(subject, lengths, now_ms, candidates)
    return str(
        counters.run(
            scripts.FILL,
            epoch=epoch,
            subject=subject,
            is_user=subject.startswith("u"),
            seen=seen.decode(),
            candidates=candidates,
            spans=[[seconds, found.ended.get(seconds, [])] for seconds in lengths],
            open=[_row(grant) for grant in found.open],
            booked=found.booked,
        )
    )


def _row(grant: OpenGrant) -> list[object]:
    others = grant.subjects.others
    return [str(grant.generation_id), grant.subjects.user, others, grant.admitted_ms, grant.tokens, grant.granted]


def drifted() -> list[str]:
    """Keys of windows that count something else than the database says, twice in a row. Raises redis.RedisError.

    Looks at MOST windows, chosen by chance, so that a large site is gone through in some calls. What changes while it
    is looked at is not drift; reservations without a row yet are counted as they are.
    """
    epoch, found = counters.current_epoch(), []
    if not epoch:
        return []
    known = list(counters.window_keys(epoch))
    for key, subject, seconds in random.sample(known, min(MOST, len(known))):
        first = _difference(epoch, key, subject, seconds)
        if first and first == _difference(epoch, key, subject, seconds):
            found.append(key)
    return found


def _difference(epoch: str, key: str, subject: str, seconds: int) -> tuple[int, int] | None:
    """(requests, tokens) that the window counts beyond the truth; None where it counts right, or nothing.

    Not judged either: a subject with an end that is booked and not settled yet (by the sweep, if its worker died).
    """
    names: dict[bytes, bytes] = store().hgetall(open_key(epoch, subject))  # type: ignore[assignment]
    held = {name.decode(): value.decode() for name, value in names.items() if name}
    requests, tokens, now_ms = counters.total(key, seconds)
    if requests < 0:
        return None
    found = used(subject, [seconds], now_ms, list(held))
    if found.booked:
        return None
    known = {str(grant.generation_id) for grant in found.open}
    true_requests, true_tokens = found.total(seconds, now_ms)
    for generation, value in held.items():
        if generation not in known:
            raw = value if subject.startswith("u") else store().hget(open_key(epoch, value), generation)
            if raw and [key, seconds] in json.loads(raw)["w"]:
                true_requests += 1
                true_tokens += json.loads(raw)["n"]
    difference = requests - true_requests, tokens - true_tokens
    return difference if any(difference) else None
