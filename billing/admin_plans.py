"""Plans of people and organizations in the admin: an action for each in the lists, buttons on their pages, and the
history."""

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from billing.admin_parts import OwnedRowsAdmin, link
from billing.models import Organization, Plan, PlanChange, User
from billing.plans import override_plan, set_organization_plan, set_plan

if TYPE_CHECKING:
    from billing.admin_parts import AdminBase
else:
    AdminBase = object

MOST_DAYS = 36_500


class SetPlanMixin(AdminBase):
    """For the admin of Organization and of User. What it does is written into both histories."""

    change_form_template = "admin/billing/set_plan.html"

    def get_urls(self) -> list[Any]:
        name = f"billing_{self.opts.model_name}_set_plan"
        view = self.admin_site.admin_view(require_POST(self.set_plan_view))
        return [path("<path:object_id>/set-plan/", view, name=name), *super().get_urls()]

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """One more for each plan: put the chosen rows on it."""
        actions: dict[str, Any] = super().get_actions(request)
        if self.has_change_permission(request):
            for plan in Plan.objects.all():
                name = f"set_plan_{plan.slug}"
                actions[name] = (_action(plan), name, f"Put on plan {plan.name}")
        return actions

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        url = reverse(f"admin:billing_{self.opts.model_name}_set_plan", args=[object_id])
        mine = {"plans": Plan.objects.all(), "set_plan_url": url, "may_be_for_days": self.model is User}
        return super().change_view(request, object_id, form_url, {**mine, **(extra_context or {})})

    def set_plan_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """POST `plan` (its slug) and `days` (for how many; empty: for good)."""
        target = self.get_object(request, object_id)
        if target is None or not self.has_change_permission(request, target):
            raise PermissionDenied
        plan = Plan.objects.filter(slug=request.POST.get("plan", "").replace("\0", "")).first()
        days = request.POST.get("days", "").strip() if isinstance(target, User) else ""
        if plan is None:
            self.message_user(request, _("There is no such plan."), level="error")
        elif not days:
            self.put_on(request, target, plan)
            self.message_user(request, _("%(who)s is on %(plan)s.") % {"who": target, "plan": plan})
        elif not (days.isascii() and days.isdecimal() and 1 <= int(days[:9]) <= MOST_DAYS):
            self.message_user(request, _("Days are a number from 1 to %(most)s.") % {"most": MOST_DAYS}, level="error")
        else:
            until = timezone.now() + timedelta(days=int(days[:9]))
            override_plan(user=target, plan=plan, until=until, changed_by=str(request.user))
            self.log_change(request, target, f"Put on plan {plan.slug} until {until:%Y-%m-%d %H:%M} UTC.")
            said = _("%(who)s is on %(plan)s for %(days)s days.") % {"who": target, "plan": plan, "days": days}
            self.message_user(request, said)
        return redirect(reverse(f"admin:billing_{self.opts.model_name}_change", args=[target.pk]))

    def put_on(self, request: HttpRequest, target: User | Organization, plan: Plan) -> None:
        """For good, through the operation."""
        if isinstance(target, User):
            set_plan(user=target, plan=plan, changed_by=str(request.user))
        else:
            set_organization_plan(organization=target, plan=plan, changed_by=str(request.user))
        self.log_change(request, target, f"Put on plan {plan.slug}.")


def _action(plan: Plan) -> Callable[..., None]:
    def act(page: SetPlanMixin, request: HttpRequest, rows: Any) -> None:
        chosen = list(rows)
        for target in chosen:
            page.put_on(request, target, plan)
        page.message_user(request, f"{len(chosen)} of them are on {plan.name}.")

    return act


@admin.register(PlanChange)
class PlanChangeAdmin(OwnedRowsAdmin):
    list_display = ("created_at", "user_link", "organization_link", "before", "plan", "until", "changed_by")
    list_filter = ("plan", "before", "created_at")
    search_fields = ("=user_id", "=organization_id", "changed_by")
    date_hierarchy = "created_at"

    def get_queryset(self, request: HttpRequest) -> QuerySet[PlanChange]:
        names = Organization.objects.filter(pk=OuterRef("organization_id")).values("name")
        rows: QuerySet[PlanChange] = super().get_queryset(request).annotate(organization_=Subquery(names))
        return rows

    @admin.display(description="organization", ordering="organization_")
    def organization_link(self, row: PlanChange) -> str:
        name = row.organization_  # type: ignore[attr-defined]
        return link(Organization(pk=row.organization_id), name) if name else str(row.organization_id or "–")
