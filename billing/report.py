"""The operator's report of usage: sums of everyone by organization, person, day, model, key or purpose.

Days that are rolled up come from UsageDay; the newest of those and what followed, which may grow, from the ledger.
"""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args
from uuid import UUID

from django.db import connection

from billing.errors import Refusal
from billing.text import clean
from billing.usage import STORED as SUMS
from billing.usage import rolled_until
from billing.usage_query import period

By = Literal["organization", "user", "day", "model", "key", "purpose"]
COLUMNS: dict[By, str] = {
    "organization": "organization_id", "user": "user_id", "day": "day", "model": "model", "key": "api_key_id",
    "purpose": "purpose",
}  # fmt: skip
FILTERS: dict[str, str] = {"organization": "organization_id", "user": "user_id", "model": "model", "key": "api_key_id"}
# Names of what the ids stand for; ids of what is gone stay ids.
LABELS: dict[By, tuple[str, str]] = {
    "organization": ("o.name", "LEFT JOIN billing_organization o ON o.id::text = sums.key"),
    "user": ("u.email", "LEFT JOIN billing_user u ON u.id::text = sums.key"),
    "key": ("k.hint || '… ' || k.name", "LEFT JOIN billing_apikey k ON k.id::text = sums.key"),
}
PAGE = 100  # rows
BATCH = 2000  # rows of an export at a time
LONGEST_SEARCH = 255

REPORT = """
WITH entries AS (
    SELECT day, organization_id, user_id, api_key_id, model, purpose, {sums} FROM billing_usageday
    WHERE day >= %(first)s AND day <= %(last)s AND day < %(fresh)s {filters}
    UNION ALL
    SELECT (created_at AT TIME ZONE 'UTC')::date, organization_id, user_id, api_key_id, model, purpose,
           (kind = 'usage')::int, prompt_tokens, cached_tokens, completion_tokens, cost_micro
    FROM billing_ledgerentry
    WHERE created_at >= greatest(%(first)s, %(fresh)s)::timestamp AT TIME ZONE 'UTC'
          AND created_at < (%(last)s + 1)::timestamp AT TIME ZONE 'UTC' {filters}
), sums AS (
    SELECT coalesce({column}::text, '') AS key, {totals} FROM entries GROUP BY 1
), named AS (
    SELECT sums.*, coalesce({label}, '') AS label FROM sums {join}
)
SELECT key, label, {sums} {whole} FROM named
WHERE (%(search)s = '' OR key = %(search)s OR strpos(lower(label), lower(%(search)s)) > 0) AND key > %(after)s
ORDER BY {order} LIMIT %(limit)s OFFSET %(offset)s
"""


@dataclass(frozen=True)
class Question:
    """What is to be summed: days (both included, UTC), how grouped, of whom; and how it is shown.

    `filters`: values by FILTERS; `sort`: "label" or one of SUMS; `page` counts from 1.
    """

    first: datetime.date
    last: datetime.date
    by: By
    filters: dict[str, str]
    search: str
    sort: str
    descending: bool
    page: int


@dataclass(frozen=True)
class Report:
    """One page of rows (`key`, `label`, SUMS), and the sums of all groups, of which there are `groups`."""

    rows: list[dict[str, Any]]
    totals: dict[str, int]
    groups: int
    page: int

    @property
    def pages(self) -> int:
        return max(1, -(-self.groups // PAGE))


def question_of(query: dict[str, str], today: datetime.date) -> Question:
    """From a page's query parameters; what is missing has a default. Raises Refusal (400)."""
    first, last = period(query.get("from"), query.get("to"), today, ("from", "to"))
    by, sort = query.get("by") or "organization", query.get("sort") or "-cost_micro"
    if by not in get_args(By):
        raise Refusal("invalid_request", f"by is one of {', '.join(get_args(By))}.", param="by")
    if sort.removeprefix("-") not in ("label", *SUMS):
        raise Refusal("invalid_request", f"sort is label or one of {', '.join(SUMS)}.", param="sort")
    page = query.get("page") or "1"
    if not (page.isascii() and page.isdecimal() and 1 <= int(page[:9]) < 10**6):
        raise Refusal("invalid_request", "page is a number from 1.", param="page")
    return Question(
        first=first,
        last=last,
        by=by,  # type: ignore[arg-type]
        filters={name: _filter(name, query[name]) for name in FILTERS if query.get(name)},
        search=clean(query.get("q", "").strip(), "q", longest=LONGEST_SEARCH),
        sort=sort.removeprefix("-"),
        descending=sort.startswith("-"),
        page=int(page[:9]),
    )


def _filter(name: str, text: str) -> str:
    if name == "model":
        return clean(text, name, longest=LONGEST_SEARCH)
    try:
        return str(UUID(text))
    except ValueError:
        raise Refusal("invalid_request", f"{name} is an id.", param=name) from None


def report(question: Question) -> Report:
    """The page that is asked for; the first one where there is no such page any more."""
    direction = "DESC" if question.descending else "ASC"
    order = f"{question.sort} {direction}, key" if question.sort != "label" else f"label {direction}, key {direction}"
    for page in {question.page: None, 1: None}:
        found = _fetch(question, order=order, limit=PAGE, offset=(page - 1) * PAGE, is_whole=True)
        if found:
            totals = {name: int(found[0][f"all_{name}"]) for name in SUMS}
            return Report(found, totals, int(found[0]["all_groups"]), page)
    return Report([], dict.fromkeys(SUMS, 0), 0, 1)


def batches(question: Question) -> Iterator[list[dict[str, Any]]]:
    """All rows by their key, some at a time, so that an export of any size fits into memory."""
    after = None
    while found := _fetch(question, order="key", limit=BATCH, after=after):
        yield found
        after = found[-1]["key"]


def _fetch(
    question: Question, *, order: str, limit: int, offset: int = 0, after: str | None = None, is_whole: bool = False
) -> list[dict[str, Any]]:
    label, join = LABELS.get(question.by, ("sums.key", ""))
    whole = ", count(*) OVER () AS all_groups, " + ", ".join(f"sum({name}) OVER () AS all_{name}" for name in SUMS)
    # Only constants of this module are put in; what people give are parameters.
    statement = REPORT.format(
        sums=", ".join(SUMS),
        totals=", ".join(f"sum({name})::bigint AS {name}" for name in SUMS),
        column=COLUMNS[question.by],
        filters=" ".join(f"AND {FILTERS[name]} = %({name})s" for name in question.filters),
        label=label,
        join=join,
        whole=whole if is_whole else "",
        order=order,
    )
    if after is None:  # also a group without a key comes first
        statement = statement.replace("AND key > %(after)s", "")
    fresh = rolled_until() or question.first
    values: dict[str, Any] = {"first": question.first, "last": question.last, "fresh": fresh, "search": question.search}
    values |= {"after": after, "limit": limit, "offset": offset, **question.filters}
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
