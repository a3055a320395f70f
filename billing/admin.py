"""Operator's pages for plans, accounts, keys and the ledger."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import BaseUserCreationForm
from django.db.models import Model
from django.http import HttpRequest

from billing.models import ApiKey, LedgerEntry, Organization, Plan, User

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


@admin.register(Plan)
class PlanAdmin(AdminBase):
    list_display = ("name", "slug", "is_default", "band", "reserved_share", "max_concurrent", "max_output_tokens")


@admin.register(Organization)
class OrganizationAdmin(AdminBase):
    list_display = ("name", "id", "created_at")
    search_fields = ("name", "members__email")


class NewUserForm(UserFormBase):
    class Meta:
        model = User
        fields = ("email", "organization", "plan")


@admin.register(User)
class UserAdmin(UserAdminBase):
    add_form = NewUserForm
    list_display = ("email", "plan", "organization", "is_active", "is_staff", "date_joined", "last_login")
    list_filter = ("plan", "is_active", "is_staff")
    list_select_related = ("plan", "organization")
    search_fields = ("email", "organization__name", "id")
    ordering = ("email",)
    autocomplete_fields = ("organization",)
    readonly_fields = ("id", "date_joined", "last_login")
    fieldsets = (
        (None, {"fields": ("id", "email", "password", "organization", "plan")}),
        ("Rights", {"fields": ("is_active", "is_staff", "is_superuser", "groups", "user_permissions")}),
        ("Dates", {"fields": ("date_joined", "last_login")}),
    )
    add_fieldsets = ((None, {"fields": ("email", "organization", "plan", "password1", "password2")}),)


@admin.register(ApiKey)
class ApiKeyAdmin(AdminBase):
    """Keys are made by their owners; an operator may revoke one by setting `revoked_at`."""

    list_display = ("hint", "name", "user", "created_at", "last_used_at", "revoked_at")
    list_filter = (("revoked_at", admin.EmptyFieldListFilter),)
    list_select_related = ("user",)
    search_fields = ("name", "hint", "user__email")
    fields = ("user", "name", "hint", "created_at", "last_used_at", "revoked_at")
    readonly_fields = ("user", "name", "hint", "created_at", "last_used_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnlyAdmin):
    list_display = (
        "created_at", "user_id", "model", "purpose", "prompt_tokens", "cached_tokens", "completion_tokens",
        "finish_reason", "cost_micro",
    )  # fmt: skip
    list_filter = ("model", "purpose", "finish_reason")
    search_fields = ("user_id", "organization_id", "generation_id", "api_key_id")
    date_hierarchy = "created_at"
    show_full_result_count = False
