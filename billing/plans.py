"""Acts on who is on which plan; each leaves its entry in the history (PlanChange)."""

import datetime

from django.db import transaction
from django.utils import timezone

from billing.errors import Refusal
from billing.models import PLAN_ROWS, Organization, Plan, PlanChange, PlanOverride, User


def set_plan(*, user: User, plan: Plan, changed_by: str) -> None:
    """This plan from now on, whatever the organization has; an override ends. What was used still counts."""
    with transaction.atomic():
        before = plan_now(user)
        PlanOverride.objects.filter(user=user).delete()
        User.objects.filter(pk=user.pk).update(plan=plan, plan_is_own=True)
        record(user=user, before=before, plan=plan.slug, changed_by=changed_by)
    user.plan, user.plan_is_own = plan, True


def override_plan(*, user: User, plan: Plan, until: datetime.datetime, changed_by: str) -> None:
    """This plan until then, in the place of any other override. Raises Refusal (invalid_until) for a past time."""
    if until <= timezone.now():
        raise Refusal("invalid_until", "An override ends in the future.", param="until")
    with transaction.atomic():
        before = plan_now(user)
        PlanOverride.objects.update_or_create(user=user, defaults={"plan": plan, "until": until})
        record(user=user, before=before, plan=plan.slug, until=until, changed_by=changed_by)


def set_organization_plan(*, organization: Organization, plan: Plan | None, changed_by: str) -> None:
    """The plan of the members who have none of their own; None: each has theirs."""
    with transaction.atomic():
        before = (
            Organization.objects.select_for_update(of=("self",)).select_related("plan").get(pk=organization.pk).plan
        )
        Organization.objects.filter(pk=organization.pk).update(plan=plan)
        record(organization=organization, before=slug_of(before), plan=slug_of(plan), changed_by=changed_by)
    organization.plan = plan


def plan_now(user: User) -> str:
    """Slug of the plan that holds for an account, as the database has it; empty for a new one. Locks the account."""
    rows = User.objects.select_for_update(of=("self",)).select_related(*PLAN_ROWS)
    found = rows.filter(pk=user.pk).first()
    return found.current_plan.slug if found else ""


def slug_of(plan: Plan | None) -> str:
    """A plan as the history names it."""
    return plan.slug if plan else ""


def record(
    *,
    user: User | None = None,
    organization: Organization | None = None,
    before: str,
    plan: str,
    changed_by: str,
    until: datetime.datetime | None = None,
) -> None:
    """Write a change of plan, of a person or of an organization, into the history; inside its transaction."""
    PlanChange.objects.create(
        user_id=user.pk if user else None,
        organization_id=organization.pk if organization else None,
        before=before,
        plan=plan,
        until=until,
        changed_by=changed_by,
    )
