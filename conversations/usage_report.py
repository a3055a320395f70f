"""The sums of a period as the usage page shows them: by day, by model, by key, by member."""

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _

from billing.models import User
from billing.usage import emails, summed, total, with_names
from billing.usage_query import UsageQuery

MOST_SERIES = 7  # models with a colour of their own; the rest is one
MOST_MEMBERS = 200

Row = dict[str, Any]


@dataclass(frozen=True)
class Day:
    """`tokens`: of each of the report's series."""

    day: datetime.date
    sums: dict[str, int]
    tokens: list[int]


@dataclass(frozen=True)
class Report:
    """What one person used: `series` names the models of the days' `tokens`, the most used first."""

    totals: dict[str, int]
    series: list[str]
    days: list[Day]
    models: list[Row]
    keys: list[Row]


@dataclass(frozen=True)
class Member:
    """`email` None: who has left, or has no account any more. `share`: of the organization's tokens, in percent."""

    id: UUID
    email: str | None
    sums: dict[str, int]
    share: float


@dataclass(frozen=True)
class Members:
    """Of an organization; `hidden` more are in the CSV."""

    totals: dict[str, int]
    rows: list[Member]
    hidden: int


def report(query: UsageQuery) -> Report:
    """The person's use; `query` is by day, model and key."""
    rows = with_names(query, summed(query))
    models = _grouped(rows, lambda row: row["model"])
    named = [row["model"] for row in models]
    series = named if len(named) <= MOST_SERIES + 1 else named[:MOST_SERIES]
    others = named[len(series) :]
    by_day: dict[datetime.date, list[Row]] = {}
    for row in rows:
        by_day.setdefault(row["day"], []).append(row)
    days = [_day(day, by_day.get(day, []), series, others) for day in query.days]
    keys = _grouped(rows, lambda row: row["key"])
    return Report(total(rows), [*series, *([_("Other models")] if others else [])], days, models, keys)


def _day(day: datetime.date, rows: Sequence[Row], series: Sequence[str], others: Sequence[str]) -> Day:
    def tokens(names: Sequence[str]) -> int:
        return sum(row["total_tokens"] for row in rows if row["model"] in names)

    return Day(day, total(rows), [*(tokens([name]) for name in series), *([tokens(others)] if others else [])])


def _grouped(rows: Iterable[Row], group: Callable[[Row], object]) -> list[Row]:
    """The rows with equal groups as one, the most tokens first."""
    found: dict[object, list[Row]] = {}
    for row in rows:
        found.setdefault(group(row), []).append(row)
    sums = [members[0] | total(members) for members in found.values()]
    return sorted(sums, key=lambda row: (-row["total_tokens"], str(group(row))))


SORTS: dict[str, Callable[[Member], Any]] = {
    "member": lambda member: (member.email is None, member.email or str(member.id)),
    "requests": lambda member: member.sums["requests"],
    "tokens": lambda member: member.sums["total_tokens"],
    "cost": lambda member: member.sums["cost_micro"],
}


def members_of(owner: User, query: UsageQuery, sort: str) -> Members | None:
    """The members of the owner's organization and who used it, `sort` being a name of SORTS, with "-" downwards.

    `query` is the organization's, by member. None for who is alone there.
    """
    people = emails(owner.organization_id)
    sums = {row["member"]: row for row in summed(query)}
    if not (people.keys() | sums.keys()) - {owner.pk}:
        return None
    totals = total(sums.values())
    zero = total([])
    rows = [
        Member(
            id=pk,
            email=people.get(pk),
            sums=sums.get(pk, zero),
            share=100 * sums.get(pk, zero)["total_tokens"] / max(1, totals["total_tokens"]),
        )
        for pk in people.keys() | sums.keys()
    ]
    rows.sort(key=SORTS["member"])  # among equals
    rows.sort(key=SORTS[sort.removeprefix("-")], reverse=sort.startswith("-"))
    return Members(totals, rows[:MOST_MEMBERS], max(0, len(rows) - MOST_MEMBERS))
