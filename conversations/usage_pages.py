"""The usage page: what is left of each limit, what was used, and, for owners, by whom."""

import datetime
from dataclasses import dataclass, replace
from typing import Any

from django import forms
from django.contrib.auth.decorators import login_required
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from billing.admission import states_for
from billing.errors import Refusal
from billing.limits import WindowState
from billing.models import User
from billing.operations import Principal
from billing.usage_query import UsageQuery, parse_usage_query
from conversations import wording
from conversations.usage_report import SORTS, Members, members_of, report

SORT = "-tokens"


class PeriodForm(forms.Form):
    """The days to look at; checked by billing.usage_query, for programs and people alike."""

    start = forms.DateField(label=_("From"), widget=forms.DateInput(attrs={"type": "date"}))
    end = forms.DateField(label=_("To"), widget=forms.DateInput(attrs={"type": "date"}))


@dataclass(frozen=True)
class Limit:
    """A window in words."""

    state: WindowState
    name: str
    renewal: str

    @classmethod
    def of(cls, state: WindowState, now: datetime.datetime) -> "Limit":
        return cls(state, wording.window_name(state.window), wording.renewal(state, now))


@login_required
@never_cache
@require_safe
def usage(request: HttpRequest) -> HttpResponse:
    """A period's sums in the person's time zone."""
    user = request.user
    assert isinstance(user, User)
    query, refusal = _query(user, request.GET)
    context = {
        "plan": user.current_plan,
        "limits": _limits(user),
        "query": query,
        "error": refusal,
        "form": PeriodForm(initial={"start": query.first.isoformat(), "end": query.last.isoformat()}),
        "presets": _presets(query),
        "report": report(query),
        **_members(user, query, request.GET.get("sort", SORT)),
        "csv": _csv(query, "group_by=day,model,key"),
    }
    return render(request, "settings/usage.html", context, status=refusal.status if refusal else 200)


def _query(user: User, given: QueryDict) -> tuple[UsageQuery, Refusal | None]:
    """What is asked for; where that is not possible, why, and the last days instead."""
    wanted = QueryDict(mutable=True)
    wanted["group_by"] = "day,model,key"
    usual = parse_usage_query(user, wanted)
    wanted.update({name: given.get(name, "") for name in ("start", "end")})
    try:
        return parse_usage_query(user, wanted), None
    except Refusal as refusal:
        return usual, refusal


def _limits(user: User) -> list[Limit] | None:
    """None while the counters cannot say."""
    now = timezone.now()
    try:
        return [Limit.of(state, now) for state in states_for(Principal(user))]
    except (Refusal, OperationalError):
        return None


def _presets(query: UsageQuery) -> list[dict[str, Any]]:
    """Links to usual periods that end today."""
    today = timezone.now().astimezone(query.zone).date()
    firsts = {gettext("%(days)s days") % {"days": n}: today - datetime.timedelta(days=n - 1) for n in (7, 30, 90)}
    return [
        {"name": name, "start": first, "end": today, "is_shown": (query.first, query.last) == (first, today)}
        for name, first in {**firsts, gettext("This month"): today.replace(day=1)}.items()
    ]


def _members(user: User, query: UsageQuery, sort: str) -> dict[str, Any]:
    if not user.is_owner:
        return {}
    sort = sort if sort.removeprefix("-") in SORTS else SORT
    wanted = replace(query, column="organization_id", subject=user.organization_id, by=("member",))
    found: Members | None = members_of(user, wanted, sort)
    return {
        "members": found,
        "organization": user.organization,
        "columns": [_column(name, sort) for name in SORTS],
        "members_csv": _csv(query, "scope=organization&group_by=member,day"),
    }


_COLUMNS = {"member": _("Member"), "requests": _("Requests"), "tokens": _("Tokens"), "cost": _("Cost")}


def _column(name: str, sort: str) -> dict[str, Any]:
    """A head that sorts: names upwards first, numbers downwards; again: the other way round."""
    is_sorted = sort.removeprefix("-") == name
    is_down = sort.startswith("-")
    first = name if name == "member" else f"-{name}"
    turned = name if is_down else f"-{name}"
    return {
        "label": _COLUMNS[name],
        "sort": turned if is_sorted else first,
        "aria": ("descending" if is_down else "ascending") if is_sorted else "",
        "is_number": name != "member",
    }


def _csv(query: UsageQuery, more: str) -> str:
    return f"{reverse('usage')}?start={query.first}&end={query.last}&tz={query.zone.key}&format=csv&{more}"
