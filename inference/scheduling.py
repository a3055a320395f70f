"""Who goes next, and who may queue. Pure: the facts are arguments, the choice is the result.

An engine never preempts a full batch for a waiting request (measured on vLLM 0.32), so priority, reserved
capacity and fairness are all decided here, before a request reaches the engine.

Fairness within a band is the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models"
(OSDI '24): the user served least goes next. A counter grows as service happens, by weighted tokens over the weight
of the user's plan; who comes back after a pause is lifted to the least counter among those who wait.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import floor
from uuid import UUID

AGED_EVERY = 4  # of this many starts, one goes to a request that waited too long, if there is any
SUSPECT_WAIT_S = 10.0  # after which one worker empties for a request that must run alone
PROMPT_WEIGHT = 1.0  # what a token adds to the counter; the paper's weights
OUTPUT_WEIGHT = 2.0


@dataclass(frozen=True)
class Waiting:
    """The oldest waiting request of one user in one band."""

    id: UUID
    user_id: UUID
    band: int
    tokens: int  # prompt + grant: what it may come to hold in the KV cache
    waited_s: float
    boost_s: float  # its plan's max_wait_boost
    counter: float = 0.0  # the user's virtual token counter in this band, lifted
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
    """What one worker can hold; `reserved` is the share of slots that belongs to a band, by band.

    `empties`: this worker starts nothing else while a suspect has waited too long to run alone.
    """

    slots: int
    kv_tokens: int
    reserved: Mapping[int, float] = field(default_factory=dict)
    empties: bool = False

    def slots_for(self, band: int) -> int:
        """Slots that a band and those below it may fill together: never what is reserved above."""
        above = sum(share for other, share in self.reserved.items() if other > band)
        return max(1, floor(self.slots * (1 - above) + 1e-9))

    def has_room(self, band: int, running: Collection[Running]) -> bool:
        """Whether a slot is free for this band: one more of it takes nothing that is reserved for a higher one."""
        limits = {band, *(other for other in self.reserved if other > band), *(job.band for job in running)}
        return len(running) < self.slots and all(
            sum(1 for job in running if job.band <= level) < self.slots_for(level) for level in limits if level >= band
        )


def pick(
    waiting: Iterable[Waiting], running: Collection[Running], capacity: Capacity, starts: int = 0
) -> Waiting | None:
    """The request to start now, or None.

    `starts` counts this worker's starts, for the share of aged requests. The result does not depend on the order
    of `waiting`.
    """
    eligible = _eligible(waiting, running, capacity)
    if not eligible:
        return None
    band = max(candidate.band for candidate in eligible)
    aged = [candidate for candidate in eligible if candidate.waited_s > candidate.boost_s]
    if aged and starts % AGED_EVERY == AGED_EVERY - 1:
        # The turn is the band's, not the request's: who has queued up a lot within it gains nothing.
        band = max(aged, key=lambda candidate: (candidate.waited_s, candidate.id)).band
    active: dict[UUID, int] = {}
    for job in running:
        active[job.user_id] = active.get(job.user_id, 0) + 1

    def order(candidate: Waiting) -> tuple[float, int, bool, float, UUID]:
        # What runs is charged as it is served; among equals, it says who is about to be ahead.
        held = active.get(candidate.user_id, 0)
        return (candidate.counter, held, not candidate.is_warm, -candidate.waited_s, candidate.id)

    return min((candidate for candidate in eligible if candidate.band == band), key=order)


def count_fitting(waiting: Iterable[Waiting], running: Collection[Running], capacity: Capacity) -> int:
    """How many of these would start here one after the other."""
    left, held = {candidate.id: candidate for candidate in waiting}, list(running)
    while (choice := pick(left.values(), held, capacity)) is not None:
        del left[choice.id]
        held.append(Running(choice.user_id, choice.band, choice.tokens, choice.is_suspect))
    return len(held) - len(running)


def _eligible(waiting: Iterable[Waiting], running: Collection[Running], capacity: Capacity) -> list[Waiting]:
    """Those that the worker can hold beside what runs."""
    if len(running) >= capacity.slots or any(job.is_suspect for job in running):
        return []
    waiting = list(waiting)
    if capacity.empties:
        waiting = [one for one in waiting if one.is_suspect and one.waited_s > SUSPECT_WAIT_S] or waiting
    free_tokens = capacity.kv_tokens - sum(job.tokens for job in running)
    rooms: dict[int, bool] = {}

    def fits(candidate: Waiting) -> bool:
        if running and (candidate.is_suspect or candidate.tokens > free_tokens):
            return False
        if candidate.band not in rooms:
            rooms[candidate.band] = capacity.has_room(candidate.band, running)
        return rooms[candidate.band]

    return [candidate for candidate in waiting if fits(candidate)]


def wait_s(place: int, free: int, starts_per_s: float | None) -> float | None:
    """Seconds until a request at this place (1 = next) starts, `free` of the slots being free for it now.

    `starts_per_s`: at which a slot becomes free while all are taken. None while that is unknown.
    """
    if place <= free:
        return 0.0
    return None if not starts_per_s else (place - free) / starts_per_s


def is_saturated(wait: float | None, oldest_s: float, after_s: float) -> bool:
    """Whether a model is too busy for a plan that says so from `after_s` seconds of waiting on.

    `wait`: as wait_s has it; while it is unknown, how long the first one has waited speaks for it.
    """
    return (oldest_s if wait is None else wait) > after_s


def may_queue(waiting: int, depth: int, wait: float | None = None, max_wait_s: float | None = None) -> bool:
    """Whether one more request may wait.

    `waiting`: requests of its band and above that wait, with room for `depth`; `wait`: seconds until it would start,
    None while unknown; `max_wait_s`: what its plan allows, None for any time.
    """
    return waiting < depth and (wait is None or max_wait_s is None or wait <= max_wait_s)
