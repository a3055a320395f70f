"""Acts on who is on which plan."""

import datetime

from django.db import transaction
from django.utils import timezone

from billing.errors import Refusal
from billing.models import Plan, PlanChange, PlanOverride, User


def set_plan(*, user: User, plan: Plan, changed_by: str) -> None:
    """This plan from now on, whatever the organization has; an override ends. What was used still counts."""
    with transaction.atomic():
        PlanOverride.objects.filter(user=user).delete()
        User.objects.filter(pk=user.pk).update(plan=plan, plan_is_own=True)
        record(user=user, plan=plan.slug, changed_by=changed_by)
    user.plan, user.plan_is_own = plan, True


def override_plan(*, user: User, plan: Plan, until: datetime.datetime, changed_by: str) -> None:
    """This plan until then, in the place of any other override. Raises Refusal (invalid_until) for a past time."""
    if until <= timezone.now():
        raise Refusal("invalid_until", "An override ends in the future.", param="until")
    with transaction.atomic():
        PlanOverride.objects.update_or_create(user=user, defaults={"plan": plan, "until": until})
        record(user=user, plan=plan.slug, until=until, changed_by=changed_by)


def record(*, user: User, plan: str, changed_by: str, until: datetime.datetime | None = None) -> None:
    """Write a change of plan into its history; inside the transaction that makes it."""
    PlanChange.objects.create(user_id=user.pk, plan=plan, until=until, changed_by=changed_by)
