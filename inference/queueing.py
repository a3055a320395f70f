"""Whether one more request may wait, and what those who wait are told: from places and measured service rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db.models import Max
from django.db.models.functions import Now

from billing.errors import Refusal
from billing.models import Plan, User
from billing.operations import Principal
from billing.rules import rules_for
from inference import waiting
from inference.models import Generation, ServedModel, Worker
from inference.scheduling import Capacity, is_saturated, may_queue, wait_s

AT_ONCE = 200  # inserts under way at the same time, at most


@dataclass(frozen=True)
class Terms:
    """What a user's plan says about the queue."""

    band: int
    weight: float
    boost_s: float
    depth: int  # requests of this band and above that may wait for a model
    max_wait_s: float


def queue_terms(plan: Plan) -> Terms:
    """The terms of a plan; what it leaves open is the site's."""
    return Terms(
        band=plan.band,
        weight=plan.weight,
        boost_s=plan.max_wait_boost_s,
        depth=settings.QUEUE_DEPTH if plan.queue_depth is None else min(plan.queue_depth, settings.QUEUE_DEPTH),
        max_wait_s=settings.MAX_WAIT_S if plan.max_wait_s is None else plan.max_wait_s,
    )


def reserved_shares() -> dict[int, float]:
    """Reserved share of the slots by priority band, from the plans."""
    shares = Plan.objects.filter(reserved_share__gt=0).values_list("band").annotate(share=Max("reserved_share"))
    return dict(shares)


@dataclass(frozen=True)
class Service:
    """What the workers of a model can do for a band: slots free now, and starts per second while all are taken."""

    state: str  # "ready", "starting" or "none"
    free: int
    starts_per_s: float | None


def service(model: str, band: int) -> Service:
    """As the workers last told, at most a second ago."""
    live = Worker.objects.filter(model_id=model, lease_until__gt=Now()).exclude(state=Worker.State.GONE)
    workers = list(live.values_list("state", "slots", "running", "service_s"))
    ready = [row[1:] for row in workers if row[0] == Worker.State.READY]
    if not ready:
        return Service("starting" if workers else "none", 0, None)
    reserved = reserved_shares()
    usable = [Capacity(slots, 0, reserved).slots_for(band) for slots, _, _ in ready]
    free = sum(max(0, most - running) for most, (_, running, _) in zip(usable, ready, strict=True))
    measured = [each for _, _, each in ready if each]
    mean_s = sum(measured) / len(measured) if measured else None
    return Service("ready", free, sum(usable) / mean_s if mean_s else None)


@dataclass(frozen=True)
class QueueRoom:
    """A queue that had room: how many may wait in it, and how many did."""

    depth: int
    waiting: int


def check_queue(model: ServedModel, user: User, terms: Terms) -> QueueRoom:
    """Raises Refusal (queue_full) when too many wait, or when the wait would be longer than the plan allows."""
    queue = waiting.queue_before(model.name, terms.band, user.pk)
    room = QueueRoom(terms.depth, queue.waiting)
    if not queue.waiting:
        return room
    now = service(model.name, terms.band)
    wait = wait_s(queue.ahead + 1, now.free, now.starts_per_s)
    if not may_queue(queue.waiting, terms.depth, wait, terms.max_wait_s):
        raise queue_full(wait)
    return room


def join_queue(generation: Generation, room: QueueRoom) -> None:
    """For the inserting transaction. Raises Refusal (queue_full) when others took the last places meanwhile.

    Far from the end it costs nothing: between the look at the queue and the insert, a few milliseconds, more requests
    than AT_ONCE would have to come, and half of the queue.
    """
    is_far = room.depth - room.waiting > max(AT_ONCE, room.depth / 2)
    if not is_far and not waiting.take_place(generation.model_id, generation.band, room.depth):
        raise queue_full(None)


def stand_in(model: ServedModel, principal: Principal) -> ServedModel | None:
    """The model that the plan lets answer while `model` is too busy; None: it answers itself, or is waited for.

    It must be allowed itself, have workers and be less busy. Whether the prompt fits is the caller's to see.
    """
    user, plan = principal.user, principal.user.current_plan
    if plan.stand_in_id in (None, model.pk) or plan.stand_in is None or not plan.stand_in.is_enabled:
        return None
    if not rules_for(plan, user.organization_id, principal.api_key_id).allows(plan.stand_in.name):
        return None
    if not _is_busy(model, user, plan) or _is_busy(plan.stand_in, user, plan):
        return None
    return plan.stand_in


def _is_busy(model: ServedModel, user: User, plan: Plan) -> bool:
    terms, now = queue_terms(plan), service(model.name, plan.band)
    if now.state != "ready":
        return True
    queue = waiting.queue_before(model.name, plan.band, user.pk)
    wait = wait_s(queue.ahead + 1, now.free, now.starts_per_s)
    return queue.waiting >= terms.depth or is_saturated(wait, queue.oldest_s, plan.stand_in_after_s)


def queue_full(wait: float | None) -> Refusal:
    """Too many wait; `wait`: how long one more would."""
    return Refusal(
        "queue_full",
        "Too many requests wait for this model; try again shortly.",
        status=429,
        retry_after=10 if wait is None else max(1.0, wait),
        estimated_wait_seconds=None if wait is None else round(wait, 1),
    )


def queue_places(generations: Sequence[UUID]) -> dict[UUID, dict[str, object]]:
    """`position` (1 = next), `eta_seconds` (None while nothing is known) and `workers` for waiting generations."""
    places: dict[UUID, dict[str, object]] = {}
    rows = Generation.objects.filter(pk__in=generations, status=Generation.Status.WAITING)
    bands: dict[tuple[str, int], list[UUID]] = {}
    for pk, model, band in rows.values_list("pk", "model_id", "band"):
        bands.setdefault((model, band), []).append(pk)
    for (model, band), ids in bands.items():
        now = service(model, band)
        for pk, place in waiting.places(model, ids).items():
            eta = wait_s(place, now.free, now.starts_per_s) if now.state == "ready" else None
            places[pk] = {
                "position": place,
                "eta_seconds": None if eta is None else round(eta, 1),
                "workers": now.state,
            }
    return places
