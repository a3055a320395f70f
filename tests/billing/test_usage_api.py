"""/api/v1/usage: sums of the ledger, by the days of a time zone, for a person and for an owner."""

import csv
import io
import json
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from billing.models import LedgerEntry, User
from billing.operations import correct, issue_key
from billing.usage import SUMS
from tests.conftest import client_of

PATH = "/api/v1/usage"


def entry(user: User, time: str, **fields: object) -> LedgerEntry:
    values: dict[str, object] = {
        "generation_id": uuid4(), "model": "a", "purpose": "chat", "prompt_tokens": 10, "cached_tokens": 4,
        "completion_tokens": 5, "finish_reason": "stop", "cost_micro": 7,
        "created_at": datetime.fromisoformat(time).replace(tzinfo=UTC),
    }  # fmt: skip
    subjects = {"user_id": user.pk, "organization_id": user.organization_id}
    return LedgerEntry.objects.create(**(values | subjects | fields))


@pytest.fixture
def entries(user: User) -> None:
    entry(user, "2026-03-01T00:00")
    entry(user, "2026-03-01T23:59:59.999999")
    entry(user, "2026-03-02T00:00", model="b")


def get(api: APIClient, **query: Any) -> dict[str, Any]:
    answer = api.get(PATH, {"start": "2026-03-01", "end": "2026-03-02", **query})
    assert answer.status_code == 200, answer.content
    found: dict[str, Any] = answer.json()
    return found


def test_sums_by_day_and_model(api: APIClient, entries: None) -> None:
    usage = get(api)
    assert (usage["start"], usage["end"], usage["time_zone"]) == ("2026-03-01", "2026-03-02", "UTC")
    first = {"day": "2026-03-01", "model": "a", "requests": 2, "prompt_tokens": 20, "cached_tokens": 8}
    assert usage["items"][0] == first | {"completion_tokens": 10, "total_tokens": 30, "cost_micro": 14}
    assert [(item["day"], item["requests"]) for item in usage["items"]] == [("2026-03-01", 2), ("2026-03-02", 1)]
    assert usage["totals"]["requests"] == 3 and usage["totals"]["total_tokens"] == 45


@pytest.mark.parametrize("group_by", ["day,model", ["model", "day"], "model, day,", ""])
def test_groups_are_repeated_or_separated_by_commas(api: APIClient, entries: None, group_by: object) -> None:
    assert get(api, group_by=group_by)["group_by"] == ["day", "model"]


def test_days_outside_are_left_out(api: APIClient, entries: None) -> None:
    assert get(api, start="2026-03-02")["items"][0]["model"] == "b"
    assert get(api, end="2026-02-28", start="2026-02-01")["items"] == []
    assert get(api, end="2026-02-28", start="2026-02-01")["totals"]["cost_micro"] == 0


def test_default_is_the_last_30_days_of_the_persons_zone(api: APIClient, user: User) -> None:
    User.objects.update(time_zone="Pacific/Kiritimati")
    usage = api.get(PATH).json()
    assert (date.fromisoformat(usage["end"]) - date.fromisoformat(usage["start"])).days == 29
    assert usage["end"] == (datetime.now(UTC) + timedelta(hours=14)).date().isoformat()
    assert usage["time_zone"] == "Pacific/Kiritimati"


@pytest.mark.parametrize(
    ("zone", "days"),
    [
        ("UTC", [("2026-03-01", 2), ("2026-03-02", 1)]),
        ("America/New_York", [("2026-02-28", 1), ("2026-03-01", 2)]),
        ("Asia/Kathmandu", [("2026-03-01", 1), ("2026-03-02", 2)]),
    ],
)
def test_days_begin_at_the_zones_midnight(
    api: APIClient, entries: None, zone: str, days: list[tuple[str, int]]
) -> None:
    items = get(api, start="2026-02-28", tz=zone, group_by="day")["items"]
    assert [(item["day"], item["requests"]) for item in items] == days


@pytest.mark.parametrize(
    ("zone", "day", "hours"), [("Europe/Zurich", "2026-03-29", 23), ("Europe/Zurich", "2026-10-25", 25)]
)
def test_a_day_when_clocks_change(api: APIClient, user: User, zone: str, day: str, hours: int) -> None:
    for hour in range(72):
        entry(user, (datetime.fromisoformat(day) + timedelta(hours=hour - 24)).isoformat())
    items = get(api, start=day, end=day, tz=zone, group_by="day")["items"]
    assert [(item["day"], item["requests"]) for item in items] == [(day, hours)]


def test_every_entry_is_on_the_day_that_its_clock_shows(api: APIClient, user: User) -> None:
    """Against the database's own conversion, over a year of Lord Howe's half hours."""
    for number in range(0, 364 * 24 * 60, 6 * 60 + 17):
        entry(user, (datetime(2026, 1, 1) + timedelta(minutes=number)).isoformat(), prompt_tokens=number)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (created_at AT TIME ZONE 'Australia/Lord_Howe')::date AS day, sum(prompt_tokens)"
            " FROM billing_ledgerentry GROUP BY 1 ORDER BY 1"
        )
        expected = [(day.isoformat(), int(tokens)) for day, tokens in cursor.fetchall()]
    items = get(api, start="2026-01-01", end="2026-12-31", tz="Australia/Lord_Howe", group_by="day")["items"]
    assert [(item["day"], item["prompt_tokens"]) for item in items] == expected


def test_sums_follow_corrections_and_leave_the_sites_own_work_out(api: APIClient, user: User, stranger: User) -> None:
    first = entry(user, "2026-03-01T10:00")
    entry(user, "2026-03-01T10:00", purpose="title", cost_micro=0)
    entry(stranger, "2026-03-01T10:00")
    correct(entry=first, prompt_tokens=-4, cost_micro=-3, note="too much")
    totals = api.get(PATH, {"start": "2026-03-01", "group_by": "model"}).json()["totals"]
    assert totals == {
        "requests": 1, "prompt_tokens": 6, "cached_tokens": 4, "completion_tokens": 5, "total_tokens": 11,
        "cost_micro": 4,
    }  # fmt: skip


def test_by_key_with_names(api: APIClient, user: User) -> None:
    key, _ = issue_key(user=user, name="laptop")
    gone = uuid4()
    for used in (key.pk, key.pk, None, gone):
        entry(user, "2026-03-01T10:00", api_key_id=used)
    items = get(api, group_by="key")["items"]
    assert {(item["key"], item["key_name"], item["requests"]) for item in items} == {
        (None, None, 1), (str(key.pk), "laptop", 2), (str(gone), None, 1),
    }  # fmt: skip
    assert "day" not in items[0]


@pytest.mark.parametrize("how", [{"format": "csv"}, {}])
def test_csv(api: APIClient, user: User, how: dict[str, str]) -> None:
    key, _ = issue_key(user=user, name="=1+1")
    entry(user, "2026-03-01T10:00", api_key_id=key.pk, model="=cmd()")
    correct(entry=entry(user, "2026-03-01T10:00"), prompt_tokens=-20, note="twice")
    query = {"start": "2026-03-01", "group_by": "model,key", **how}
    table = api.get(PATH, query, headers={} if how else {"Accept": "text/csv, application/json;q=0.5"})
    assert table["Content-Type"].startswith("text/csv")
    assert table["Content-Disposition"].startswith('attachment; filename="usage-2026-03-01-')
    assert list(csv.reader(io.StringIO(table.content.decode()))) == [
        ["model", "key", "key_name", *SUMS],
        ["'=cmd()", str(key.pk), "'=1+1", "1", "10", "4", "5", "15", "7"],
        ["a", "", "", "1", "-10", "4", "5", "-5", "7"],
    ]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"start": "2026-03-02", "end": "2026-03-01"}, "start"),
        ({"start": "2025-03-01", "end": "2026-03-02"}, "start"),
        ({"start": "0001-01-01", "end": "0001-01-02"}, "end"),
        ({"end": "9999-12-31"}, "end"),
        ({"start": "2026-02-30"}, "start"),
        ({"start": "yesterday"}, "start"),
        ({"end": "2026-03-01\0"}, "end"),
        ({"group_by": "day,planet"}, "group_by"),
        ({"group_by": "member"}, "group_by"),
        ({"tz": "Mars/Base"}, "tz"),
        ({"tz": "../../etc/passwd"}, "tz"),
        ({"tz": "a\0b"}, "tz"),
        ({"scope": "world"}, "scope"),
        ({"format": "pdf"}, "format"),
    ],
)
def test_bad_queries_are_refused_by_name(api: APIClient, query: dict[str, str], param: str) -> None:
    for path in (PATH, "/v1/usage"):
        answer = api.get(path, query, headers={"Accept": "text/csv"})
        error = json.loads(answer.content)["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_request", param)


def test_a_year_is_possible_and_a_day_more_is_not(api: APIClient) -> None:
    assert api.get(PATH, {"start": "2025-03-01", "end": "2026-03-01"}).status_code == 200
    assert api.get(PATH, {"start": "2025-02-28", "end": "2026-03-01"}).status_code == 400


def test_v1_has_the_same_sums(api: APIClient, entries: None) -> None:
    query = {"start": "2026-03-01", "end": "2026-03-02", "group_by": "model"}
    native, v1 = api.get(PATH, query).json(), api.get("/v1/usage", query)
    assert v1.json() == {"object": "list", "data": native.pop("items"), **native}
    assert "x-ratelimit-remaining-requests" in v1.headers
    table = api.get("/v1/usage", query | {"format": "csv"})
    assert table.content == api.get(PATH, query | {"format": "csv"}).content
    assert "x-ratelimit-remaining-requests" in table.headers


def test_deleted_account_keeps_its_sums(user: User, entries: None) -> None:
    user_id = user.pk
    user.delete()
    assert LedgerEntry.objects.filter(user_id=user_id).count() == 3


# -- organizations ----------------------------------------------------------------------------------


@pytest.fixture
def member(user: User, stranger: User) -> User:
    """The stranger has joined the user's organization, whose owner the user is."""
    stranger.organization = user.organization
    stranger.save()
    return stranger


def test_an_owner_sees_members_and_who_is_gone(api: APIClient, user: User, member: User, entries: None) -> None:
    entry(member, "2026-03-01T10:00", prompt_tokens=100)
    gone = uuid4()
    entry(user, "2026-03-01T10:00", user_id=gone)
    usage = get(api, scope="organization", group_by="member")
    assert {(item["member_email"], item["requests"]) for item in usage["items"]} == {
        ("user@example.org", 3), ("stranger@example.org", 1), (None, 1),
    }  # fmt: skip
    assert usage["totals"]["requests"] == 5
    assert get(api)["totals"]["requests"] == 3
    table = api.get(PATH, {"scope": "organization", "group_by": "member", "start": "2026-03-01", "format": "csv"})
    assert table.content.decode().startswith("member,member_email,requests")


def test_others_do_not(member: User, entries: None) -> None:
    for path in (PATH, "/v1/usage"):
        answer = client_of(member).get(path, {"scope": "organization"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert get(client_of(member))["items"] == []


def test_an_owner_who_was_moved_sees_neither_organization(user: User, stranger: User, entries: None) -> None:
    user.organization = stranger.organization
    user.save()
    assert client_of(user).get(PATH, {"scope": "organization"}).status_code == 404


def test_too_many_groups_are_refused(api: APIClient, entries: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("billing.usage.MOST_ROWS", 1)
    answer = api.get(PATH, {"start": "2026-03-01", "end": "2026-03-02"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_rows")


def test_one_query_reads_the_ledger(api: APIClient, entries: None) -> None:
    with CaptureQueriesContext(
        connection,
    ) as queries:
        get(api, group_by="day,model,key")
    assert sum("billing_ledgerentry" in query["sql"] for query in queries) == 1
