"""What someone used, summed from the ledger."""

import datetime
from typing import TypedDict
from uuid import UUID

from django.db.models import Count, Sum
from django.db.models.functions import TruncDate

from billing.errors import Refusal
from billing.models import LedgerEntry

DEFAULT_DAYS = 30
MOST_DAYS = 366


class Day(TypedDict):
    """One day (UTC) and model."""

    day: datetime.date
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_micro: int


def period(first: str | None, last: str | None, today: datetime.date) -> tuple[datetime.date, datetime.date]:
    """Two query parameters, from and to, as days (both included). Raises Refusal (invalid_request)."""
    end = _day(last, "to") if last else today
    start = _day(first, "from") if first else end - datetime.timedelta(days=min(DEFAULT_DAYS - 1, end.toordinal() - 1))
    if start > end:
        raise Refusal("invalid_request", "from is later than to.", param="from")
    if (end - start).days >= MOST_DAYS:
        raise Refusal("invalid_request", f"Ask for at most {MOST_DAYS} days at once.", param="from")
    return start, end


def by_day(*, user_id: UUID, first: datetime.date, last: datetime.date) -> list[Day]:
    """The user's sums by day and model, oldest first; both days included; money in micro-units."""
    since = datetime.datetime.combine(first, datetime.time.min, datetime.UTC)
    until = datetime.datetime.combine(last, datetime.time.max, datetime.UTC)
    rows = (
        LedgerEntry.objects.filter(user_id=user_id, created_at__gte=since, created_at__lte=until)
        .annotate(day=TruncDate("created_at", tzinfo=datetime.UTC))
        .values("day", "model")
        .annotate(
            requests=Count("pk"),
            prompt=Sum("prompt_tokens"),
            cached=Sum("cached_tokens"),
            completion=Sum("completion_tokens"),
            cost=Sum("cost_micro"),
        )
        .order_by("day", "model")
    )
    return [
        Day(
            day=row["day"],
            model=row["model"],
            requests=row["requests"],
            prompt_tokens=row["prompt"],
            cached_tokens=row["cached"],
            completion_tokens=row["completion"],
            cost_micro=row["cost"],
        )
        for row in rows
    ]


def _day(text: str, param: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise Refusal("invalid_request", f"{param} must be a day like 2026-01-31.", param=param) from None
