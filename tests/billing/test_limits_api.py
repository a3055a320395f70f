"""/api/v1/limits; roll-ups; the ledger that nobody changes."""

import datetime
from decimal import Decimal
from uuid import uuid4

import pytest
from django.db import InternalError, transaction
from django.db.utils import IntegrityError
from rest_framework.test import APIClient

from billing.models import LedgerEntry, UsageDay, User
from billing.operations import Usage, book, correct
from billing.pricing import Prices
from billing.usage import roll_up
from tests.billing.limits import admit

DAY = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


def entry(user: User, **fields: object) -> LedgerEntry:
    values: dict[str, object] = {"prompt_tokens": 10, "completion_tokens": 5, "cost_micro": 7, "created_at": DAY}
    values |= {"model": "a", "purpose": "chat", "finish_reason": "stop", "generation_id": uuid4()}
    return LedgerEntry.objects.create(user_id=user.pk, organization_id=user.organization_id, **(values | fields))


def test_each_window_says_what_is_left(api: APIClient, user: User) -> None:
    before = api.get("/api/v1/limits").json()
    assert before["plan"]["slug"] == "free"
    assert {(item["name"], item["left"], item["renews_at"]) for item in before["items"]} == {
        ("requests_per_3_hours", 20, None),
        ("tokens_per_day", 40_000, None),
    }
    admit(user, 100, asked=400)
    after = {item["name"]: item for item in api.get("/api/v1/limits").json()["items"]}
    assert (after["tokens_per_day"]["used"], after["tokens_per_day"]["left"]) == (500, 39_500)
    assert (after["requests_per_3_hours"]["used"], after["requests_per_3_hours"]["limit_of"]) == (1, "user")
    renews = datetime.datetime.fromisoformat(after["requests_per_3_hours"]["renews_at"])
    assert 3 * 3600 - 5 < (renews - datetime.datetime.now(datetime.UTC)).total_seconds() < 3 * 3600 * 1.01


def test_roll_ups_come_out_the_same_and_follow_corrections(user: User, stranger: User) -> None:
    first = entry(user)
    entry(user, model="b")
    entry(stranger)
    entry(user, purpose="title", cost_micro=0)
    day = DAY.date()

    def sums() -> list[tuple[object, ...]]:
        assert roll_up(day, day) == UsageDay.objects.count()
        names = ("user_id", "model", "purpose", "requests", "prompt_tokens", "completion_tokens", "cost_micro")
        return sorted(UsageDay.objects.values_list(*names), key=str)

    before = sums()
    assert len(before) == 4 and sums() == before
    correct(entry=first, prompt_tokens=-10, cost_micro=-7, note="charged twice")
    assert LedgerEntry.objects.filter(generation_id=first.generation_id).count() == 2
    today = datetime.datetime.now(datetime.UTC).date()
    assert roll_up(today, today) == 1
    taken = UsageDay.objects.get(day=today)
    assert (taken.requests, taken.prompt_tokens, taken.cost_micro) == (0, -10, -7)


def test_nobody_changes_an_entry(user: User) -> None:
    made = entry(user)
    for change in (
        lambda: LedgerEntry.objects.update(cost_micro=0),
        lambda: LedgerEntry.objects.all().delete(),
        made.save,
    ):
        with pytest.raises((IntegrityError, InternalError), match="append-only"), transaction.atomic():
            change()
    with pytest.raises(IntegrityError), transaction.atomic():
        entry(user, generation_id=made.generation_id)
    with pytest.raises(IntegrityError), transaction.atomic():
        entry(user, prompt_tokens=-1)


def test_price_is_the_plans_multiple_rounded_once(user: User) -> None:
    def cost(multiplier: Decimal, purpose: str = "chat") -> int:
        booked = book(
            generation_id=uuid4(), user_id=user.pk, organization_id=user.organization_id, api_key_id=None, model="a",
            purpose=purpose, prices=Prices(300_000, 1_500_000, multiplier), usage=Usage(10, 0, 5), finish_reason="stop",
        )  # fmt: skip
        return booked.cost_micro

    assert [cost(Decimal(text)) for text in ("1", "2", "0.5", "0")] == [11, 21, 5, 0]
    assert cost(Decimal(1), "title") == 0
