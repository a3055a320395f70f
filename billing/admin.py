"""Operator's pages for plans, accounts, keys and the ledger."""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import BaseUserCreationForm
from django.db.models import Count, Model, OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode

from billing.models import ApiKey, LedgerEntry, Organization, Plan, User
from billing.operations import forget_addresses, revoke_key, set_active

if TYPE_CHECKING:  # Django's classes are generic in the stubs only
    AdminBase = admin.ModelAdmin[Any]
    UserAdminBase = DjangoUserAdmin[User]
    UserFormBase = BaseUserCreationForm[User]
else:
    AdminBase, UserAdminBase, UserFormBase = admin.ModelAdmin, DjangoUserAdmin, BaseUserCreationForm


class ReadOnlyAdmin(AdminBase):
    """Looking is all that is possible."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Actions through operations need the right to change rows, though no form changes any."""
        return bool(request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}"))


class OwnedRowsAdmin(ReadOnlyAdmin):
    """Rows that name their user by an opaque id, and outlive the account."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        emails = User.objects.filter(pk=OuterRef("user_id")).values("email")
        rows: QuerySet[Any] = super().get_queryset(request)
        annotated: QuerySet[Any] = rows.annotate(email_=Subquery(emails))
        return annotated

    @admin.display(description="user", ordering="email_")
    def user_link(self, row: Any) -> str:
        """The account, if there is one still."""
        return link(User(pk=row.user_id), row.email_) if row.email_ else str(row.user_id)


def link(target: Model | None, text: object = None) -> str:
    """A link to a row's page in the admin; a dash where there is none."""
    if target is None or target.pk is None:
        return "–"
    page = reverse(f"admin:{target._meta.app_label}_{target._meta.model_name}_change", args=[target.pk])
    return format_html('<a href="{}">{}</a>', page, text if text is not None else target)


def list_link(model: type[Model], text: object, **filters: str | int | UUID) -> str:
    """A link to a list of rows in the admin."""
    page = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    return format_html(
        '<a href="{}?{}">{}</a>', page, urlencode({name: str(value) for name, value in filters.items()}), text
    )


@admin.register(Plan)
class PlanAdmin(AdminBase):
    list_display = (
        "name", "slug", "is_default", "band", "reserved_share", "weight", "max_concurrent", "max_output_tokens",
        "people",
    )  # fmt: skip
    list_filter = ("is_default",)
    search_fields = ("name", "slug")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Plan]:
        rows: QuerySet[Plan] = super().get_queryset(request)
        return rows.annotate(people_=Count("users"))

    @admin.display(description="users", ordering="people_")
    def people(self, plan: Plan) -> str:
        return list_link(User, plan.people_, plan__id__exact=plan.pk)  # type: ignore[attr-defined]


@admin.register(Organization)
class OrganizationAdmin(AdminBase):
    list_display = ("name", "id", "people", "ledger", "created_at")
    search_fields = ("name", "=id", "members__email")
    readonly_fields = ("id", "people", "ledger", "created_at")
    date_hierarchy = "created_at"
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        rows: QuerySet[Organization] = super().get_queryset(request)
        return rows.annotate(people_=Count("members"))

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
class UserAdmin(UserAdminBase):
    add_form = NewUserForm
    list_display = (
        "email", "plan", "organization_link", "is_active", "is_staff", "keys", "ledger", "date_joined", "last_login",
    )  # fmt: skip
    list_filter = ("plan", "is_active", "is_staff", "is_superuser", "date_joined")
    list_select_related = ("plan", "organization")
    search_fields = ("email", "organization__name", "=id")
    ordering = ("email",)
    autocomplete_fields = ("organization",)
    readonly_fields = ("id", "organization_link", "keys", "ledger", "date_joined", "last_login")
    fieldsets = (
        (None, {"fields": ("id", "email", "password", "organization", "plan", "theme", "time_zone")}),
        ("Rights", {"fields": ("is_active", "is_staff", "is_superuser", "groups", "user_permissions")}),
        ("Dates", {"fields": ("date_joined", "last_login")}),
        ("Related", {"fields": ("organization_link", "keys", "ledger")}),
    )
    add_fieldsets = ((None, {"fields": ("email", "organization", "plan", "password1", "password2")}),)
    actions = ("deactivate", "activate")

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        rows: QuerySet[User] = super().get_queryset(request)
        return rows.annotate(keys_=Count("api_keys"))

    def save_model(self, request: HttpRequest, user: User, form: Any, change: bool) -> None:
        """Another address is another log-in: what allauth knows of the old one goes."""
        super().save_model(request, user, form, change)
        if "email" in form.changed_data:
            forget_addresses(user=user)

    @admin.display(description="organization", ordering="organization__name")
    def organization_link(self, user: User) -> str:
        return link(user.organization)

    @admin.display(description="API keys", ordering="keys_")
    def keys(self, user: User) -> str:
        return list_link(ApiKey, user.keys_, user__id__exact=user.pk)  # type: ignore[attr-defined]

    @admin.display(description="ledger")
    def ledger(self, user: User) -> str:
        return list_link(LedgerEntry, "entries", user_id__exact=user.pk)

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
