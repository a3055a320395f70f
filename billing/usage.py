"""What someone used, summed from the ledger; and the ledger rolled up by day."""

import datetime
from collections.abc import Iterable
from typing import Any, Literal, get_args
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Count, F, Max, Min, Q, Sum
from django.db.models.functions import TruncDate

from billing.errors import Refusal
from billing.models import LedgerEntry, UsageDay
from billing.spreadsheet import csv_lines

DEFAULT_DAYS = 30
MOST_DAYS = 366

Group = Literal["day", "model", "key"]
SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_micro")
_FIELDS: dict[Group, str] = {"day": "day", "model": "model", "key": "api_key_id"}

ROLL_UP = """
INSERT INTO billing_usageday (id, day, user_id, organization_id, api_key_id, model, purpose, requests, prompt_tokens,
                              cached_tokens, completion_tokens, cost_micro)
SELECT gen_random_uuid(), (created_at AT TIME ZONE 'UTC')::date AS day, user_id, organization_id, api_key_id, model,
       purpose, count(*) FILTER (WHERE kind = 'usage'), sum(prompt_tokens), sum(cached_tokens),
       sum(completion_tokens), sum(cost_micro)
FROM billing_ledgerentry WHERE created_at >= %(since)s AND created_at <= %(until)s
GROUP BY day, user_id, organization_id, api_key_id, model, purpose
"""


def period(first: str | None, last: str | None, today: datetime.date) -> tuple[datetime.date, datetime.date]:
    """Two query parameters, from and to, as days (both included). Raises Refusal (invalid_request)."""
    end = _day(last, "to") if last else today
    start = _day(first, "from") if first else end - datetime.timedelta(days=min(DEFAULT_DAYS - 1, end.toordinal() - 1))
    if start > end:
        raise Refusal("invalid_request", "from is later than to.", param="from")
    if (end - start).days >= MOST_DAYS:
        raise Refusal("invalid_request", f"Ask for at most {MOST_DAYS} days at once.", param="from")
    return start, end


def groups(text: str | None) -> tuple[Group, ...]:
    """The query parameter `group`: day, model and key, separated by commas. Raises Refusal (invalid_request)."""
    names = (text or "day,model").split(",")
    known = get_args(Group)
    if not set(names) <= set(known) or len(names) > len(known):
        raise Refusal("invalid_request", f"group is of {', '.join(known)}, separated by commas.", param="group")
    return tuple(name for name in known if name in names)


def summed(*, user_id: UUID, first: datetime.date, last: datetime.date, by: tuple[Group, ...]) -> list[dict[str, Any]]:
    """The user's sums in these groups, in their order; both days included (UTC); money in micro-units.

    From the ledger itself, so that they are true at every moment.
    """
    since, until = _span(first, last)
    fields = [_FIELDS[name] for name in by]
    rows = (
        LedgerEntry.objects.filter(user_id=user_id, created_at__gte=since, created_at__lte=until)
        .annotate(day=TruncDate("created_at", tzinfo=datetime.UTC))
        .values(*fields)
        .annotate(
            requests=Count("pk", filter=Q(kind="usage")),
            prompt=Sum("prompt_tokens"),
            cached=Sum("cached_tokens"),
            completion=Sum("completion_tokens"),
            cost=Sum("cost_micro"),
        )
        .order_by(*(F(field).asc(nulls_first=True) for field in fields))
    )
    return [
        {name: row[_FIELDS[name]] for name in by}
        | {
            "requests": row["requests"],
            "prompt_tokens": row["prompt"],
            "cached_tokens": row["cached"],
            "completion_tokens": row["completion"],
            "cost_micro": row["cost"],
        }
        for row in rows
    ]


def as_csv(rows: Iterable[dict[str, Any]], by: tuple[Group, ...]) -> str:
    """The sums as CSV with a head."""
    names = [*by, *SUMS]
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
    since, until = _span(first, last)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('billing_usageday'))")
        UsageDay.objects.filter(day__gte=first, day__lte=last).delete()
        cursor.execute(ROLL_UP, {"since": since, "until": until})
        return int(cursor.rowcount)


def _span(first: datetime.date, last: datetime.date) -> tuple[datetime.datetime, datetime.datetime]:
    """The first and the last moment."""
    since = datetime.datetime.combine(first, datetime.time.min, datetime.UTC)
    return since, datetime.datetime.combine(last, datetime.time.max, datetime.UTC)


def _day(text: str, param: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise Refusal("invalid_request", f"{param} must be a day like 2026-01-31.", param=param) from None
