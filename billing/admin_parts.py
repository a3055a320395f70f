"""What the admin's pages of all apps share."""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin
from django.db.models import Model, OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode

from billing.models import User

if TYPE_CHECKING:  # Django's classes are generic in the stubs only
    AdminBase = admin.ModelAdmin[Any]
    InlineBase = admin.TabularInline[Any, Any]
else:
    AdminBase, InlineBase = admin.ModelAdmin, admin.TabularInline


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
        return link(User(pk=row.user_id), row.email_) if row.email_ else str(row.user_id or "–")


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
