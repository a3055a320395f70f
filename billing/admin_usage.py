"""The admin's report of usage, as a page and as CSV; billing.report sums."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC
from decimal import Decimal
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from billing.admin_parts import OwnedRowsAdmin
from billing.errors import Refusal
from billing.models import ApiKey, Organization, UsageDay, User
from billing.report import COLUMNS, FILTERS, Question, batches, question_of, report
from billing.spreadsheet import csv_lines
from billing.usage import STORED as SUMS

URL = "admin:billing_usageday_report"
NEXT = {"organization": "user", "user": "day", "key": "day", "model": "organization"}  # where a row leads, if it does
MODELS = {"organization": Organization, "user": User, "key": ApiKey}


@dataclass(frozen=True)
class Column:
    """A head to sort by."""

    title: str
    url: str
    mark: str


def usage_link(by: str, **filters: UUID) -> str:
    """A link to the report of one person or organization."""
    query = urlencode({"by": by, **{name: str(value) for name, value in filters.items()}})
    return format_html('<a href="{}?{}">usage</a>', reverse(URL), query)


def usage_page(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    """The report that the query asks for; `context` is the admin site's. Bad queries are told so, with 400."""
    _require(request)
    today = timezone.now().astimezone(UTC).date()
    try:
        question = question_of(request.GET.dict(), today)
    except Refusal as refusal:
        context |= {"error": refusal.message, "question": question_of({}, today), "groups": _groups()}
        return render(request, "admin/billing/usageday/report.html", context, status=refusal.status)
    found = report(question)
    context |= {
        "question": question,
        "report": replace(found, rows=[_row(question, row) for row in found.rows]),
        "columns": [_column(question, name) for name in ("label", *SUMS)],
        "totals": _figures(found.totals),
        "groups": _groups(),
        "filters": [_chosen(question, name, value) for name, value in question.filters.items()],
        "export_url": _url(question, name=f"{URL}_csv"),
        "previous_url": _url(question, page=found.page - 1) if found.page > 1 else "",
        "next_url": _url(question, page=found.page + 1) if found.page < found.pages else "",
    }
    return render(request, "admin/billing/usageday/report.html", context)


def usage_csv(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """The whole report as CSV, written while it is read."""
    _require(request)
    try:
        question = question_of(request.GET.dict(), timezone.now().astimezone(UTC).date())
    except Refusal as refusal:
        return HttpResponse(refusal.message, status=refusal.status, content_type="text/plain")
    name = f"usage-{question.by}-{question.first}-{question.last}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingHttpResponse(_lines(question), content_type="text/csv; charset=utf-8", headers=headers)


async def _lines(question: Question) -> AsyncIterator[str]:
    yield csv_lines([[question.by, "name", *SUMS]])
    found = batches(question)
    while rows := await sync_to_async(lambda: next(found, None))():
        yield csv_lines([row["key"], row["label"], *(int(row[name]) for name in SUMS)] for row in rows)


def _require(request: HttpRequest) -> None:
    if not request.user.has_perm("billing.view_usageday"):
        raise PermissionDenied


def _url(question: Question, name: str = URL, **changes: Any) -> str:
    """The address of the same question, changed."""
    new = replace(question, **changes)
    query: dict[str, Any] = {"from": new.first, "to": new.last, "by": new.by, "q": new.search}
    query |= {"page": new.page if new.page > 1 else "", "sort": ("-" if new.descending else "") + new.sort}
    query |= new.filters
    return f"{reverse(name)}?{urlencode({key: value for key, value in query.items() if value})}"


def _column(question: Question, name: str) -> Column:
    is_sorted = question.sort == name
    descending = not question.descending if is_sorted else name != "label"
    mark = ("↓" if question.descending else "↑") if is_sorted else ""
    return Column(_titles()[name], _url(question, sort=name, descending=descending, page=1), mark)


def _titles() -> dict[str, str]:
    return {
        "label": _("Name"), "requests": _("Requests"), "prompt_tokens": _("Prompt tokens"),
        "cached_tokens": _("of these cached"), "completion_tokens": _("Output tokens"), "cost_micro": _("Cost"),
    }  # fmt: skip


def _groups() -> dict[str, str]:
    titles = (_("Organization"), _("Person"), _("Day"), _("Model"), _("API key"), _("Purpose"))
    return dict(zip(COLUMNS, titles, strict=True))


def _figures(sums: dict[str, int]) -> list[str]:
    counts = [f"{int(sums[name]):,}" for name in SUMS if name != "cost_micro"]
    return [*counts, f"{Decimal(int(sums['cost_micro'])) / 1_000_000:,.4f}"]


def _row(question: Question, row: dict[str, Any]) -> dict[str, Any]:
    """A row with where it leads: one step down, and the page of what it is about."""
    key, by = row["key"], question.by
    down = ""
    if key and by in NEXT:
        filters = {**question.filters, by: key}
        down = _url(question, by=NEXT[by], filters=filters, search="", page=1, sort="cost_micro", descending=True)
    name = row["label"] or key or _("none")
    is_there = by in MODELS and row["label"]
    return {"name": name, "down": down, "page": _page_of(by, key) if is_there else "", "figures": _figures(row)}


def _page_of(kind: str, key: str) -> str:
    model = MODELS[kind]._meta
    return reverse(f"admin:{model.app_label}_{model.model_name}_change", args=[key])


def _chosen(question: Question, name: str, value: str) -> dict[str, str]:
    """A filter in force: what it says, and the address without it."""
    found = MODELS[name]._default_manager.filter(pk=UUID(value)).first() if name in MODELS else None
    rest = {other: kept for other, kept in question.filters.items() if other != name}
    assert name in FILTERS
    return {
        "field": name,
        "value": value,
        "title": _groups()[name],
        "name": str(found) if found else value,
        "without": _url(question, filters=rest, page=1),
    }


@admin.register(UsageDay)
class UsageDayAdmin(OwnedRowsAdmin):
    """Of the ledger, up to the last roll-up."""

    list_display = (
        "day", "user_link", "organization_id", "model", "purpose", "requests", "prompt_tokens", "completion_tokens",
        "cost_micro",
    )  # fmt: skip
    list_filter = ("model", "purpose", "day")
    search_fields = ("=user_id", "=organization_id", "=api_key_id")
    date_hierarchy = "day"
    show_full_result_count = False
    change_list_template = "admin/billing/usageday/list.html"

    def get_urls(self) -> list[Any]:
        """Beside the rows, their report."""
        view = self.admin_site.admin_view
        return [
            path("report/", view(self.report), name="billing_usageday_report"),
            path("report.csv", view(usage_csv), name="billing_usageday_report_csv"),
            *super().get_urls(),
        ]

    def report(self, request: HttpRequest) -> HttpResponse:
        return usage_page(request, {**self.admin_site.each_context(request), "title": _("Usage")})
