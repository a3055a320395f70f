"""/api/v1/usage: the ledger's sums by day."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from billing.models import LedgerEntry, User


@pytest.fixture
def entries(user: User) -> None:
    for time, model in (("2026-03-01T00:00", "a"), ("2026-03-01T23:59", "a"), ("2026-03-02T00:00", "b")):
        LedgerEntry.objects.create(
            generation_id=uuid4(),
            user_id=user.pk,
            organization_id=user.organization_id,
            model=model,
            purpose="chat",
            prompt_tokens=10,
            cached_tokens=4,
            completion_tokens=5,
            finish_reason="stop",
            cost_micro=7,
            created_at=datetime.fromisoformat(time).replace(tzinfo=UTC),
        )


def test_sums_by_day_and_model(api: APIClient, entries: None) -> None:
    usage = api.get("/api/v1/usage", {"from": "2026-03-01", "to": "2026-03-02"}).json()
    assert (usage["first"], usage["last"]) == ("2026-03-01", "2026-03-02")
    first = {"day": "2026-03-01", "model": "a", "requests": 2, "prompt_tokens": 20, "cached_tokens": 8}
    assert usage["items"][0] == first | {"completion_tokens": 10, "cost_micro": 14}
    assert [(item["day"], item["requests"]) for item in usage["items"]] == [("2026-03-01", 2), ("2026-03-02", 1)]


def test_days_outside_are_left_out(api: APIClient, entries: None) -> None:
    assert api.get("/api/v1/usage", {"from": "2026-03-02", "to": "2026-03-02"}).json()["items"][0]["model"] == "b"
    assert api.get("/api/v1/usage", {"to": "2026-02-28"}).json()["items"] == []


def test_default_is_the_last_30_days(api: APIClient) -> None:
    usage = api.get("/api/v1/usage").json()
    assert (datetime.fromisoformat(usage["last"]) - datetime.fromisoformat(usage["first"])).days == 29


def test_deleted_account_keeps_its_sums(user: User, entries: None) -> None:
    user_id = user.pk
    user.delete()
    assert LedgerEntry.objects.filter(user_id=user_id).count() == 3


def test_first_possible_day(api: APIClient) -> None:
    assert api.get("/api/v1/usage", {"to": "0001-01-01"}).json()["items"] == []
