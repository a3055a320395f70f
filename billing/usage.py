"""What someone, or an organization, used: sums of the ledger; and the ledger rolled up by day."""

import datetime
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Max, Min, Sum

from billing.errors import Refusal
from billing.models import ApiKey, LedgerEntry, UsageDay, User
from billing.spreadsheet import csv_lines
from billing.usage_query import Group, UsageQuery

MOST_ROWS = 50_000
STORED = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_micro")  # a roll-up's columns
SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "total_tokens", "cost_micro")
_COLUMNS: dict[Group, tuple[str, ...]] = {
    "day": ("day",), "model": ("model",), "key": ("key", "key_name"), "member": ("member", "member_email"),
}  # fmt: skip

# The day of an entry is found by the moments at which days begin: half the work of converting each time. The limit
# stands outside: within, it would make the planner, which expects as many groups as entries, sort all of those.
SUM_UP = """
WITH sums AS MATERIALIZED (
    SELECT {groups}, count(*) FILTER (WHERE kind = 'usage'), sum(prompt_tokens), sum(cached_tokens),
           sum(completion_tokens), sum(prompt_tokens + completion_tokens), sum(cost_micro)::bigint
    FROM billing_ledgerentry
    WHERE {column} = %(subject)s AND purpose = 'chat' AND created_at >= %(since)s AND created_at < %(until)s
    GROUP BY {groups}
)
SELECT * FROM sums LIMIT %(most)s
"""
_GROUPS: dict[Group, str] = {
    "day": "width_bucket(created_at, %(bounds)s::timestamptz[])",
    "model": "model",
    "key": "api_key_id",
    "member": "user_id",
}
ROLL_UP = """
INSERT INTO billing_usageday (id, day, user_id, organization_id, api_key_id, model, purpose, requests, prompt_tokens,
                              cached_tokens, completion_tokens, cost_micro)
SELECT gen_random_uuid(), (created_at AT TIME ZONE 'UTC')::date AS day, user_id, organization_id, api_key_id, model,
       purpose, count(*) FILTER (WHERE kind = 'usage'), sum(prompt_tokens), sum(cached_tokens),
       sum(completion_tokens), sum(cost_micro)
FROM billing_ledgerentry WHERE created_at >= %(since)s AND created_at <= %(until)s
GROUP BY day, user_id, organization_id, api_key_id, model, purpose
"""


def summed(query: UsageQuery) -> list[dict[str, Any]]:
    """The sums in the groups that were asked for, in their order; groups without use are left out.

    From the ledger itself, so that they are true at every moment, for the days of any time zone. The site's own work,
    such as titles, is nobody's use. Raises Refusal (too_many_rows).
    """
    bounds = query.bounds()
    sql = SUM_UP.format(groups=", ".join(_GROUPS[name] for name in query.by), column=query.column)
    values: dict[str, Any] = {
        "subject": query.subject, "since": bounds[0], "until": bounds[-1], "bounds": bounds, "most": MOST_ROWS + 1,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        rows = [dict(zip((*query.by, *SUMS), row, strict=True)) for row in cursor.fetchall()]
    if len(rows) > MOST_ROWS:
        raise Refusal("too_many_rows", f"These are more than {MOST_ROWS:,} sums: ask for fewer days or groups.")
    for row in rows:
        if "day" in row:
            row["day"] = query.first + datetime.timedelta(days=row["day"] - 1)
    return sorted(rows, key=lambda row: [str(row[name] or "") for name in query.by])


def total(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The sums of sums."""
    found = dict.fromkeys(SUMS, 0)
    for row in rows:
        for name in SUMS:
            found[name] += row[name]
    return found


def costs_of(generations: Iterable[UUID | None]) -> dict[UUID | None, int]:
    """What each of these cost, corrections included, in micro-units; None and those that have not ended are missing."""
    known = [generation for generation in generations if generation]
    rows = LedgerEntry.objects.filter(generation_id__in=known).values_list("generation_id")
    return dict(rows.annotate(cost=Sum("cost_micro")))


def with_names(query: UsageQuery, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the names of their keys and members; None where an account or key is gone."""
    if "key" in query.by:
        known = ApiKey.objects.filter(
            **{"user_id" if query.column == "user_id" else "user__organization": query.subject}
        )
        keys = dict(known.values_list("pk", "name"))
        rows = [row | {"key_name": keys.get(row["key"])} for row in rows]
    if "member" in query.by:
        people = emails(query.subject)
        rows = [row | {"member_email": people.get(row["member"])} for row in rows]
    return rows


def emails(organization_id: UUID) -> dict[UUID, str]:
    """The members of an organization."""
    return dict(User.objects.filter(organization=organization_id).values_list("pk", "email"))


def as_csv(rows: Iterable[dict[str, Any]], by: tuple[Group, ...]) -> str:
    """Sums with names as CSV with a head."""
    names = [*(column for name in by for column in _COLUMNS[name]), *SUMS]
    return csv_lines([names, *([row[name] for name in names] for row in rows)])


def rolled_until() -> datetime.date | None:
    """The newest day that is rolled up, perhaps in part; None before the first roll-up."""
    newest: datetime.date | None = UsageDay.objects.aggregate(day=Max("day"))["day"]
    return newest


def first_day() -> datetime.date | None:
    """The day (UTC) of the ledger's first entry."""
    first = LedgerEntry.objects.aggregate(time=Min("created_at"))["time"]
    return first.astimezone(datetime.UTC).date() if first else None


def roll_up(first: datetime.date, last: datetime.date) -> int:
    """Sum the ledger of these days (UTC, both included) anew into UsageDay; returns how many rows that makes.

    Doing it again gives the same numbers. Readers see the old sums or the new ones, never half of them.
    """
    since = datetime.datetime.combine(first, datetime.time.min, datetime.UTC)
    until = datetime.datetime.combine(last, datetime.time.max, datetime.UTC)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('billing_usageday'))")
        UsageDay.objects.filter(day__gte=first, day__lte=last).delete()
        cursor.execute(ROLL_UP, {"since": since, "until": until})
        return int(cursor.rowcount)
