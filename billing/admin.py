"""Operator's pages for plans, accounts, keys and the ledger."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import BaseUserCreationForm
from django.db.models import Count, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from billing.admin_parts import AdminBase, InlineBase, OwnedRowsAdmin, ReadOnlyAdmin, link, list_link
from billing.admin_plans import SetPlanMixin
from billing.admin_usage import usage_link
from billing.models import (
    ApiKey,
    KeyWindow,
    LedgerEntry,
    Organization,
    OrganizationWindow,
    Plan,
    PlanChange,
    PlanOverride,
    PlanWindow,
    User,
)
from billing.operations import forget_addresses, revoke_key, set_active
from billing.plans import plan_now, record, slug_of

if TYPE_CHECKING:  # Django's classes are generic in the stubs only
    UserAdminBase = DjangoUserAdmin[User]
    UserFormBase = BaseUserCreationForm[User]
    PlanFormBase = ModelForm[Plan]
else:
    UserAdminBase, UserFormBase, PlanFormBase = DjangoUserAdmin, BaseUserCreationForm, ModelForm


class WindowInline(InlineBase):
    fields = ("kind", "amount", "seconds")
    extra = 0


class PlanWindowInline(WindowInline):
    model = PlanWindow


class OrganizationWindowInline(WindowInline):
    model = OrganizationWindow


class OverrideInline(InlineBase):
    model = PlanOverride
    fields = ("plan", "until")
    extra = 0


class PlanForm(PlanFormBase):
    """Checks that need more than one field, or chosen rows."""

    def clean(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().clean() or {}
        stand_in, allowed = fields.get("stand_in"), set(fields.get("allowed_models") or ())
        if stand_in and allowed and stand_in not in allowed:
            self.add_error("stand_in", _("The plan does not allow this model."))
        elif stand_in and allowed == {stand_in}:
            self.add_error("stand_in", _("The plan allows no other model that it could stand in for."))
        return fields


@admin.register(Plan)
class PlanAdmin(AdminBase):
    form = PlanForm
    list_display = (
        "name", "slug", "is_default", "band", "reserved_share", "weight", "max_concurrent", "max_output_tokens",
        "limits", "stand_in", "price_multiplier", "people",
    )  # fmt: skip
    list_filter = ("is_default",)
    search_fields = ("name", "slug")
    filter_horizontal = ("allowed_models",)
    inlines = (PlanWindowInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Plan]:
        rows: QuerySet[Plan] = super().get_queryset(request)
        return rows.annotate(people_=Count("users")).prefetch_related("windows")

    @admin.display(description="users", ordering="people_")
    def people(self, plan: Plan) -> str:
        return list_link(User, plan.people_, plan__id__exact=plan.pk)  # type: ignore[attr-defined]

    @admin.display(description="windows")
    def limits(self, plan: Plan) -> str:
        return ", ".join(map(str, plan.windows.all())) or "–"


@admin.register(Organization)
class OrganizationAdmin(SetPlanMixin, AdminBase):
    list_display = ("name", "id", "plan", "people", "usage", "ledger", "created_at")
    list_filter = ("plan",)
    list_select_related = ("plan",)
    inlines = (OrganizationWindowInline,)
    search_fields = ("name", "=id", "members__email")
    readonly_fields = ("id", "people", "usage", "ledger", "plan_history", "created_at")
    date_hierarchy = "created_at"
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        rows: QuerySet[Organization] = super().get_queryset(request)
        return rows.annotate(people_=Count("members"))

    def save_model(self, request: HttpRequest, organization: Organization, form: Any, change: bool) -> None:
        """Its plan has a history."""
        before = form.initial.get("plan")
        super().save_model(request, organization, form, change)
        if "plan" in form.changed_data:
            old, by = Plan.objects.filter(pk=before).first(), str(request.user)
            record(organization=organization, before=slug_of(old), plan=slug_of(organization.plan), changed_by=by)

    @admin.display
    def usage(self, organization: Organization) -> str:
        return usage_link("user", organization=organization.pk)

    @admin.display(description="plan changes")
    def plan_history(self, organization: Organization) -> str:
        return list_link(PlanChange, "history", organization_id__exact=organization.pk)

    @admin.display(description="members", ordering="people_")
    def people(self, organization: Organization) -> str:
        count = organization.people_  # type: ignore[attr-defined]
        return list_link(User, count, organization__id__exact=organization.pk)

    @admin.display(description="ledger")
    def ledger(self, organization: Organization) -> str:
        return list_link(LedgerEntry, "entries", organization_id__exact=organization.pk)


class NewUserForm(UserFormBase):
    class Meta:
        model = User
        fields = ("email", "organization", "plan")


@admin.register(User)
class UserAdmin(SetPlanMixin, UserAdminBase):
    add_form = NewUserForm
    list_display = (
        "email", "plan", "organization_link", "is_active", "is_staff", "keys", "usage", "ledger", "date_joined",
        "last_login",
    )  # fmt: skip
    list_filter = ("plan", "is_active", "is_staff", "is_superuser", "date_joined")
    list_select_related = ("plan", "organization")
    search_fields = ("email", "organization__name", "=id")
    ordering = ("email",)
    autocomplete_fields = ("organization", "owner_of")
    readonly_fields = (
        "id",
        "organization_link",
        "keys",
        "usage",
        "ledger",
        "plan_history",
        "date_joined",
        "last_login",
    )
    inlines = (OverrideInline,)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "id",
                    "email",
                    "password",
                    "organization",
                    "owner_of",
                    "plan",
                    "plan_is_own",
                    "theme",
                    "time_zone",
                )
            },
        ),
        ("Rights", {"fields": ("is_active", "is_staff", "is_superuser", "groups", "user_permissions")}),
        ("Dates", {"fields": ("date_joined", "last_login")}),
        ("Related", {"fields": ("organization_link", "keys", "usage", "ledger", "plan_history")}),
    )
    add_fieldsets = ((None, {"fields": ("email", "organization", "plan", "password1", "password2")}),)
    actions = ("deactivate", "activate")

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        rows: QuerySet[User] = super().get_queryset(request)
        return rows.annotate(keys_=Count("api_keys"))

    def save_model(self, request: HttpRequest, user: User, form: Any, change: bool) -> None:
        """Another address is another log-in: what allauth knows of the old one goes."""
        before = plan_now(user)
        super().save_model(request, user, form, change)
        if "email" in form.changed_data:
            forget_addresses(user=user)
        if {"plan", "plan_is_own"} & set(form.changed_data):
            record(user=user, before=before, plan=user.plan.slug, changed_by=str(request.user))

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:
        """Overrides have a place in the history too."""
        before = plan_now(form.instance)
        super().save_formset(request, form, formset, change)
        for override in [*formset.new_objects, *(changed for changed, _fields in formset.changed_objects)]:
            by = str(request.user)
            record(user=override.user, before=before, plan=override.plan.slug, until=override.until, changed_by=by)
        if formset.deleted_objects:
            record(user=form.instance, before=before, plan="", changed_by=str(request.user))

    def get_inlines(self, request: HttpRequest, obj: User | None) -> Any:
        return self.inlines if obj else ()

    @admin.display(description="organization", ordering="organization__name")
    def organization_link(self, user: User) -> str:
        return link(user.organization)

    @admin.display(description="API keys", ordering="keys_")
    def keys(self, user: User) -> str:
        return list_link(ApiKey, user.keys_, user__id__exact=user.pk)  # type: ignore[attr-defined]

    @admin.display(description="ledger")
    def ledger(self, user: User) -> str:
        return list_link(LedgerEntry, "entries", user_id__exact=user.pk)

    @admin.display
    def usage(self, user: User) -> str:
        return usage_link("day", user=user.pk)

    @admin.display(description="plan changes")
    def plan_history(self, user: User) -> str:
        return list_link(PlanChange, "history", user_id__exact=user.pk)

    @admin.action(description="Deactivate: close the account to its owner and its keys", permissions=["change"])
    def deactivate(self, request: HttpRequest, users: QuerySet[User]) -> None:
        self._set_active(request, users, is_active=False)

    @admin.action(description="Activate", permissions=["change"])
    def activate(self, request: HttpRequest, users: QuerySet[User]) -> None:
        self._set_active(request, users, is_active=True)

    def _set_active(self, request: HttpRequest, users: QuerySet[User], *, is_active: bool) -> None:
        chosen = [user for user in users if is_active or user != request.user]  # nobody locks themselves out
        for user in chosen:
            set_active(user=user, is_active=is_active)
            self.log_change(request, user, "Activated." if is_active else "Deactivated.")
        self.message_user(request, f"{len(chosen)} accounts are {'open' if is_active else 'closed'}.")


@admin.register(KeyWindow)
class KeyWindowAdmin(AdminBase):
    """Limits of single API keys; their plan's hold beside them."""

    list_display = ("api_key", "kind", "amount", "seconds")
    list_select_related = ("api_key",)
    search_fields = ("api_key__hint", "api_key__name", "api_key__user__email")
    autocomplete_fields = ("api_key",)


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """Keys are made by their owners; an operator may revoke them."""

    list_display = ("hint", "name", "user_link", "created_at", "last_used_at", "revoked_at")
    list_filter = (("revoked_at", admin.EmptyFieldListFilter), "created_at", "last_used_at")
    list_select_related = ("user",)
    search_fields = ("name", "hint", "user__email", "=id")
    fields = ("id", "user_link", "name", "hint", "ledger", "created_at", "last_used_at", "revoked_at")
    readonly_fields = ("user_link", "ledger")
    actions = ("revoke",)

    @admin.display(description="user", ordering="user__email")
    def user_link(self, key: ApiKey) -> str:
        return link(key.user)

    @admin.display(description="ledger")
    def ledger(self, key: ApiKey) -> str:
        return list_link(LedgerEntry, "entries", api_key_id__exact=key.pk)

    @admin.action(description="Revoke: the keys stop working at once", permissions=["operate"])
    def revoke(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        for key in keys.select_related("user"):
            revoke_key(user=key.user, key_id=key.pk)
            self.log_change(request, key, "Revoked.")
        self.message_user(request, f"{len(keys)} keys are revoked.")


@admin.register(LedgerEntry)
class LedgerEntryAdmin(OwnedRowsAdmin):
    list_display = (
        "created_at", "user_link", "model", "purpose", "prompt_tokens", "cached_tokens", "completion_tokens",
        "finish_reason", "cost_micro",
    )  # fmt: skip
    list_filter = ("model", "purpose", "finish_reason", "created_at")
    search_fields = ("=user_id", "=organization_id", "=generation_id", "=api_key_id")
    date_hierarchy = "created_at"
    show_full_result_count = False
