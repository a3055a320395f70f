"""What is asked for of the usage: whose, which days of which time zone, in which groups."""

import datetime
import zoneinfo
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args
from uuid import UUID

from django.http import QueryDict
from django.utils import timezone

from billing.errors import Refusal
from billing.models import User

DEFAULT_DAYS = 30
MOST_DAYS = 366
FIRST_DAY, LAST_DAY = datetime.date(1970, 1, 2), datetime.date(2999, 12, 31)  # no zone leaves datetime's range

Group = Literal["day", "model", "key", "member"]
Format = Literal["json", "csv"]


@dataclass(frozen=True)
class UsageQuery:
    """Entries whose `column` is `subject`, on the days `first` to `last` (both included) of a time zone."""

    column: Literal["user_id", "organization_id"]
    subject: UUID
    first: datetime.date
    last: datetime.date
    zone: zoneinfo.ZoneInfo
    by: tuple[Group, ...]

    @property
    def days(self) -> list[datetime.date]:
        count = (self.last - self.first).days + 1
        return [self.first + datetime.timedelta(days=number) for number in range(count)]

    def bounds(self) -> list[datetime.datetime]:
        """The moments at which each of the days begins, and the one at which the last ends."""
        days = [*self.days, self.last + datetime.timedelta(days=1)]
        midnights = (datetime.datetime.combine(day, datetime.time.min, self.zone) for day in days)
        return [midnight.astimezone(datetime.UTC) for midnight in midnights]


def parse_usage_query(user: User, query: QueryDict) -> UsageQuery:
    """The parameters start, end, tz, group_by (repeated, or separated by commas) and scope; empty ones are left out.

    Raises Refusal (invalid_request, 400; not_found, 404: the organization's, for who is not its owner).
    """
    zone = _zone(query.get("tz")) or user.zone
    is_organization = _choice(query, "scope", ("user", "organization")) == "organization"
    if is_organization and not user.is_owner:
        raise Refusal("not_found", "Only owners of an organization see its usage.", status=404, param="scope")
    by = _groups(query.getlist("group_by"))
    if "member" in by and not is_organization:
        raise Refusal("invalid_request", "group_by=member needs scope=organization.", param="group_by")
    first, last = period(query.get("start"), query.get("end"), timezone.now().astimezone(zone).date())
    column: Literal["user_id", "organization_id"] = "organization_id" if is_organization else "user_id"
    return UsageQuery(column, user.organization_id if is_organization else user.pk, first, last, zone, by)


def parse_format(query: QueryDict, accept: str) -> Format:
    """The parameter format or, without one, what the Accept header names first. Raises Refusal (invalid_request)."""
    known: dict[str, Format] = {"text/csv": "csv", "application/json": "json"}
    kinds = [kind.partition(";")[0].strip().lower() for kind in accept.split(",")]
    accepted = next((known[kind] for kind in kinds if kind in known), "json")
    return "csv" if (_choice(query, "format", get_args(Format)) or accepted) == "csv" else "json"


def _choice(query: QueryDict, param: str, options: tuple[str, ...]) -> str:
    found = query.get(param) or ""
    if found and found not in options:
        raise Refusal("invalid_request", f"{param} is one of {', '.join(options)}.", param=param)
    return found


def _groups(texts: list[str]) -> tuple[Group, ...]:
    names = {name.strip() for text in texts for name in text.split(",") if name.strip()} or {"day", "model"}
    known: tuple[Group, ...] = get_args(Group)
    if not names <= set(known):
        raise Refusal("invalid_request", f"group_by is of {', '.join(known)}.", param="group_by")
    return tuple(name for name in known if name in names)


@cache
def _zone_names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _zone(name: str | None) -> zoneinfo.ZoneInfo | None:
    if not name:
        return None
    if name not in _zone_names():
        raise Refusal("invalid_request", "tz is the IANA name of a time zone, such as Europe/Zurich.", param="tz")
    return zoneinfo.ZoneInfo(name)


def period(
    start: str | None, end: str | None, today: datetime.date, params: tuple[str, str] = ("start", "end")
) -> tuple[datetime.date, datetime.date]:
    """Two query parameters, of these names, as days (both included). Raises Refusal (invalid_request)."""
    last = _day(end, params[1]) if end else today
    first = _day(start, params[0]) if start else max(FIRST_DAY, last - datetime.timedelta(days=DEFAULT_DAYS - 1))
    if first > last:
        raise Refusal("invalid_request", f"{params[0]} is later than {params[1]}.", param=params[0])
    if (last - first).days >= MOST_DAYS:
        raise Refusal("invalid_request", f"Ask for at most {MOST_DAYS} days at once.", param=params[0])
    return first, last


def _day(text: str, param: str) -> datetime.date:
    try:
        day = datetime.date.fromisoformat(text)
        if FIRST_DAY <= day <= LAST_DAY:
            return day
    except ValueError:
        pass  # refused like a day out of range
    raise Refusal(
        "invalid_request", f"{param} must be a day like 2026-01-31, from {FIRST_DAY} to {LAST_DAY}.", param=param
    )
