"""The queue and the workers at this moment, for the operator: read from the rows, so that it needs no Valkey."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.db.models import BooleanField, Case, DurationField, ExpressionWrapper, F, Q, QuerySet, Value, When
from django.db.models.functions import Now
from redis.exceptions import RedisError

from billing import counters
from inference import waiting
from inference.models import Generation, ServedModel, Worker
from inference.queueing import reserved_shares, service
from inference.scheduling import Capacity, wait_s

TROUBLE_AGE = timedelta(hours=1)
MOST_TROUBLES = 30
NOBODY = UUID(int=0)

# Open rows by model, band and the plan that holds for their user now.
OPEN = """
SELECT g.model_id, g.band, CASE WHEN g.purpose = 'chat' THEN coalesce(p.name, '') ELSE g.purpose END AS plan,
       count(*) FILTER (WHERE g.status = 'WAITING'), count(*) FILTER (WHERE g.status = 'RUNNING'),
       extract(epoch FROM clock_timestamp() - min(g.created_at) FILTER (WHERE g.status = 'WAITING'))::float8
FROM inference_generation g
LEFT JOIN billing_user u ON u.id = g.user_id
LEFT JOIN billing_organization o ON o.id = u.organization_id
LEFT JOIN billing_planoverride v ON v.user_id = u.id AND v.until > clock_timestamp()
LEFT JOIN billing_plan p ON p.id = coalesce(v.plan_id, CASE WHEN NOT u.plan_is_own THEN o.plan_id END, u.plan_id)
WHERE g.status IN ('WAITING', 'RUNNING')
GROUP BY 1, 2, 3 ORDER BY 1, 2 DESC, 3
"""


@dataclass(frozen=True)
class PlanNow:
    """What people on one plan have open in a band."""

    name: str
    waiting: int
    running: int
    oldest_s: float | None  # how long the first one has waited


@dataclass(frozen=True)
class BandNow:
    """One priority band of a model. `wait_s`: for one more request of somebody new; None: unknown."""

    band: int
    reserved: float  # share of the slots, 0 to 1
    slots: int  # that it and lower bands may fill together, at the ready workers
    starts_per_s: float | None
    wait_s: float | None
    plans: Sequence[PlanNow]

    @property
    def waiting(self) -> int:
        return sum(plan.waiting for plan in self.plans)

    @property
    def running(self) -> int:
        return sum(plan.running for plan in self.plans)

    @property
    def oldest_s(self) -> float | None:
        return max((plan.oldest_s for plan in self.plans if plan.oldest_s is not None), default=None)


@dataclass(frozen=True)
class ModelNow:
    """A model with its queue and its workers. `state`: "ready", "starting" or "none"."""

    name: str
    is_enabled: bool
    state: str
    slots: int
    bands: Sequence[BandNow]
    workers: Sequence[Worker] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        return sum(band.waiting for band in self.bands)

    @property
    def running(self) -> int:
        return sum(band.running for band in self.bands)


def models_now() -> list[ModelNow]:
    """Every model, those with something open first."""
    opened, reserved = _opened(), reserved_shares()
    workers: dict[str, list[Worker]] = {}
    for worker in workers_now():
        workers.setdefault(worker.model_id, []).append(worker)
    found = [_model(model, opened.get(model.pk, {}), workers.get(model.pk, []), reserved) for model in _models()]
    return sorted(found, key=lambda model: (not model.waiting, not model.workers, model.name))


def workers_now() -> QuerySet[Worker, Worker]:
    """Workers that live or left within the last hour: `is_live`, and `seen_ago` since their last sign of life."""
    seen = F("lease_until") - Value(timedelta(seconds=settings.LEASE_S))
    left = Case(When(state=Worker.State.GONE, then=F("lease_until")), default=seen)
    is_live = Case(When(lease_until__gt=Now(), then=True), default=False, output_field=BooleanField())
    ago = ExpressionWrapper(Now() - left, output_field=DurationField())
    return Worker.objects.annotate(is_live=is_live, seen_ago=ago).order_by("model", "-is_live", "name")


def troubles() -> list[Generation]:
    """Generations that failed or moved to another worker within the last hour, the latest first; and those that are
    open and have moved."""
    fields = ("prompt", "text", "sampling")
    moved = Generation.objects.filter(status__in=Generation.OPEN, attempt__gt=1).defer(*fields)[:MOST_TROUBLES]
    ended = Generation.objects.filter(
        Q(status=Generation.Status.FAILED) | Q(attempt__gt=1), finished_at__gt=Now() - TROUBLE_AGE
    )
    ended = ended.defer(*fields).select_related("worker").order_by("-finished_at")
    return [*moved, *ended[:MOST_TROUBLES]]


def store_trouble() -> str:
    """Why Valkey does not answer; empty when it does."""
    try:
        counters.store().ping()
    except RedisError as error:
        return str(error) or type(error).__name__
    return ""


def _models() -> QuerySet[ServedModel, ServedModel]:
    return ServedModel.objects.all()


def _opened() -> dict[str, dict[int, list[PlanNow]]]:
    with connection.cursor() as cursor:
        cursor.execute(OPEN)
        rows = cursor.fetchall()
    found: dict[str, dict[int, list[PlanNow]]] = {}
    for model, band, plan, waits, runs, oldest in rows:
        found.setdefault(model, {}).setdefault(band, []).append(PlanNow(plan, waits, runs, oldest))
    return found


def _model(
    model: ServedModel, opened: dict[int, list[PlanNow]], workers: list[Worker], reserved: dict[int, float]
) -> ModelNow:
    ready: list[Any] = [each for each in workers if each.state == Worker.State.READY and each.is_live]  # type: ignore[attr-defined]
    bands = sorted({*opened, *reserved, 0} if workers or opened else set(), reverse=True)
    rows, state = [], "none"
    for band in bands:
        now = service(model.pk, band)
        state = now.state
        ahead = waiting.queue_before(model.pk, band, NOBODY).ahead
        wait = wait_s(ahead + 1, now.free, now.starts_per_s) if now.state == "ready" else None
        slots = sum(Capacity(each.slots, 0, reserved).slots_for(band) for each in ready)
        plans = opened.get(band, [])
        rows.append(BandNow(band, reserved.get(band, 0.0), slots, now.starts_per_s, wait, plans))
    return ModelNow(model.pk, model.is_enabled, state, sum(each.slots for each in ready), rows, workers)
