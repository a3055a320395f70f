"""Who goes next. Pure: the facts are arguments, the choice is the result.

An engine never preempts a full batch for a waiting request (measured on vLLM 0.32), so priority, reserved
capacity and fairness are all decided here, before a request reaches the engine.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import floor
from uuid import UUID

AGED_EVERY = 4  # of this many starts, one goes to a request that waited too long, if there is any


@dataclass(frozen=True)
class Waiting:
    """The oldest waiting request of one user."""

    id: UUID
    user_id: UUID
    band: int
    tokens: int  # prompt + grant: what it may come to hold in the KV cache
    waited_s: float
    boost_s: float  # its plan's max_wait_boost
    is_suspect: bool = False  # was aboard a dead engine
    is_warm: bool = False  # its conversation's prefix is likely cached on this worker


@dataclass(frozen=True)
class Running:
    """A request that holds a slot."""

    user_id: UUID
    band: int
    tokens: int
    is_suspect: bool = False


@dataclass(frozen=True)
class Capacity:
    """What one worker can hold; `reserved` is the share of slots that belongs to a band, by band."""

    slots: int
    kv_tokens: int
    reserved: Mapping[int, float] = field(default_factory=dict)

    def slots_for(self, band: int) -> int:
        """Slots that a band and those below it may fill together: never what is reserved above."""
        above = sum(share for other, share in self.reserved.items() if other > band)
        return max(1, floor(self.slots * (1 - above) + 1e-9))


def may_queue(waiting: int, depth: int) -> bool:
    """Whether one more request may wait, with `waiting` ahead of it and room for `depth`."""
    return waiting < depth


def pick(
    waiting: Iterable[Waiting],
    running: Collection[Running],
    capacity: Capacity,
    served: Mapping[UUID, float],
    starts: int = 0,
) -> Waiting | None:
    """The request to start now, or None.

    `served` holds users' virtual token counters (0 where missing); `starts` counts this worker's starts, for
    the share of aged requests. The result does not depend on the order of `waiting`.
    """
    eligible = [candidate for candidate in waiting if _fits(candidate, running, capacity)]
    if not eligible:
        return None
    aged = [candidate for candidate in eligible if candidate.waited_s > candidate.boost_s]
    if aged and starts % AGED_EVERY == AGED_EVERY - 1:
        return max(aged, key=lambda candidate: (candidate.waited_s, candidate.id))
    top = max(candidate.band for candidate in eligible)
    active: dict[UUID, int] = {}
    for job in running:
        active[job.user_id] = active.get(job.user_id, 0) + job.tokens

    def order(candidate: Waiting) -> tuple[float, bool, float, UUID]:
        counter = served.get(candidate.user_id, 0.0) + active.get(candidate.user_id, 0)
        return (counter, not candidate.is_warm, -candidate.waited_s, candidate.id)

    return min((candidate for candidate in eligible if candidate.band == top), key=order)


def _fits(candidate: Waiting, running: Collection[Running], capacity: Capacity) -> bool:
    if len(running) >= capacity.slots:
        return False
    if any(job.is_suspect for job in running) or (candidate.is_suspect and running):
        return False
    if running and sum(job.tokens for job in running) + candidate.tokens > capacity.kv_tokens:
        return False
    lower = sum(1 for job in running if job.band <= candidate.band)
    return lower < capacity.slots_for(candidate.band)
