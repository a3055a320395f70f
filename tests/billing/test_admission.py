"""Reservations: grants, refusals, settling; over all windows of user, key and organization."""

from uuid import uuid4

import pytest

from billing import admission, counters
from billing.models import ApiKey, KeyWindow, OrganizationWindow, Plan, PlanWindow, User
from billing.operations import Principal, issue_key
from billing.rules import forget_rules
from tests.billing.limits import admit, only_windows, refusal_of, settle, used


def test_grant_is_the_least_of_asked_plan_room_and_budget(user: User) -> None:
    only_windows(user, ("tokens", 1000, 60))
    user.plan.max_output_tokens, user.plan.max_concurrent = 300, 9
    assert admit(user, 10, asked=50).granted_tokens == 50
    assert admit(user, 10, room=70).granted_tokens == 70
    assert admit(user, 10).granted_tokens == 300
    assert used(user) == {"tokens_per_minute": 60 + 80 + 310}
    admit(user, 200)
    assert admit(user, 10).granted_tokens == 1000 - 450 - 500 - 10


def test_what_is_left_is_granted_and_said(user: User) -> None:
    only_windows(user, ("tokens", 100, 60), ("tokens", 1000, 86_400))
    allowed = admit(user, 20, asked=500)
    assert allowed.granted_tokens == 80
    assert allowed.cut_by is not None and allowed.cut_by.window.name == "tokens_per_minute"
    assert 0 < allowed.cut_by.next_s <= 60.6
    refusal = refusal_of(user, 1, asked=1)
    assert (refusal.code, refusal.status) == ("tokens_per_minute_used_up", 429)
    assert refusal.headers()["x-ratelimit-remaining-tokens"] == "0"
    assert refusal.headers()["x-ratelimit-limit-tokens"] == "100"


def test_too_little_left_takes_nothing(user: User) -> None:
    """Under LEAST_ANSWER tokens an answer is of no use, unless fewer are asked for."""
    only_windows(user, ("tokens", 100, 60), ("requests", 10, 60))
    admit(user, 40, asked=40)
    before = used(user)
    assert refusal_of(user, 10).code == "tokens_per_minute_used_up"  # 10 would be left
    assert used(user) == before == {"tokens_per_minute": 80, "requests_per_minute": 1}
    assert admit(user, 10, asked=5).granted_tokens == 5


def test_the_longest_wait_is_reported(user: User) -> None:
    only_windows(user, ("tokens", 100, 60), ("tokens", 100, 86_400), ("requests", 1, 3600))
    admit(user, 50, asked=50)
    refusal = refusal_of(user, 50, asked=50)
    assert refusal.code == "tokens_per_day_used_up"
    assert 86_000 < refusal.body()["error"]["renews_in"] < 86_400 * 1.011
    assert refusal.retry_after == 5  # what runs may end with less
    assert refusal.headers()["Retry-After"] == "5"


def test_a_request_larger_than_the_window_is_told_so(user: User) -> None:
    only_windows(user, ("tokens", 100, 60))
    refusal = refusal_of(user, 200)
    assert (refusal.code, refusal.status, refusal.retry_after) == ("tokens_per_minute_too_small", 400, None)


def test_settling_gives_the_rest_back_once(user: User) -> None:
    only_windows(user, ("tokens", 100, 60), ("requests", 5, 60))
    name = uuid4()
    admit(user, 20, name=name)
    for _ in range(2):
        settle(user, name, 30)
    assert used(user) == {"tokens_per_minute": 30, "requests_per_minute": 1}
    assert counters.open_generations(user.pk) == []
    assert name not in {one.generation_id for one in counters.held(older_than_s=-1)}


def test_releasing_gives_the_request_back_too(user: User) -> None:
    only_windows(user, ("tokens", 100, 60), ("requests", 5, 60))
    name = uuid4()
    admit(user, 20, name=name)
    for _ in range(2):
        admission.release(principal=Principal(user), generation_id=name)
    assert used(user) == {"tokens_per_minute": 0, "requests_per_minute": 0}


def test_the_same_id_finds_its_reservation(user: User) -> None:
    only_windows(user, ("tokens", 100, 60))
    name = uuid4()
    first, second = admit(user, 20, name=name), admit(user, 20, name=name)
    assert first.is_new and not second.is_new
    assert second.granted_tokens == first.granted_tokens == 80 and second.admitted_ms == first.admitted_ms


def test_concurrent_answers_are_counted(user: User) -> None:
    only_windows(user)
    user.plan.max_concurrent = 2
    name = uuid4()
    admit(user, 1, name=name)
    admit(user, 1)
    refusal = refusal_of(user, 1)
    assert (refusal.code, refusal.status) == ("too_many_generations", 429)
    settle(user, name, 1)
    admit(user, 1)


def test_key_and_organization_have_limits_of_their_own(user: User, stranger: User) -> None:
    """The tightest wins and is the one that is reported."""
    only_windows(user, ("tokens", 1000, 3600))
    key, _ = issue_key(user=user, name="k")
    KeyWindow.objects.create(api_key=key, kind="tokens", amount=100, seconds=3600)
    OrganizationWindow.objects.create(organization=user.organization, kind="tokens", amount=150, seconds=3600)
    stranger.organization = user.organization

    def ask(who: User, with_key: ApiKey | None) -> int:
        principal = Principal(who, with_key)
        found = admission.admit(generation_id=uuid4(), principal=principal, prompt_tokens=10, room=4000, asked=None)
        assert found.cut_by is not None
        whose.append(found.cut_by.window.holder)
        return found.granted_tokens

    whose: list[str] = []
    assert [ask(user, key), ask(stranger, None)] == [90, 40]
    assert whose == ["api_key", "organization"]
    assert refusal_of(user, 1).extra["limit_of"] == "organization"


def test_a_new_window_knows_what_was_used_before(user: User) -> None:
    """An operator adds a window: answers that run count in it too, and settle in it."""
    only_windows(user, ("tokens", 1000, 60))
    name = uuid4()
    admit(user, 20, asked=30, name=name)
    only_windows(user, ("tokens", 1000, 60), ("tokens", 500, 7200))
    assert used(user) == {"tokens_per_minute": 50, "tokens_per_2_hours": 50}
    settle(user, name, 25)
    assert used(user) == {"tokens_per_minute": 25, "tokens_per_2_hours": 25}


@pytest.mark.parametrize("asked", [None, 1, 500])
def test_a_plan_without_answers(user: User, asked: int | None) -> None:
    user.plan.max_output_tokens = 0
    assert refusal_of(user, 1, asked).code == "plan_without_output"


def test_a_refusal_names_the_next_plan_that_gives_more(user: User) -> None:
    only_windows(user, ("requests", 1, 3600))
    plus, pro = Plan.objects.get(slug="plus"), Plan.objects.get(slug="pro")
    PlanWindow.objects.create(plan=plus, kind="requests", amount=1, seconds=3600)
    PlanWindow.objects.create(plan=pro, kind="requests", amount=50, seconds=3600)
    admit(user, 10)
    refused = refusal_of(user, 10)
    assert (refused.extra["limit_kind"], refused.extra["next_plan"]) == ("requests", {"name": "Pro", "amount": 50})
    assert refused.openai_body()["error"]["next_plan"] == {"name": "Pro", "amount": 50}
    Plan.objects.filter(slug="pro").update(is_offered=False)
    forget_rules()
    assert refusal_of(user, 10).extra["next_plan"] == {"name": "Unlimited", "amount": None}
    Plan.objects.filter(slug="unlimited").update(is_offered=False)
    forget_rules()
    assert "next_plan" not in refusal_of(user, 10).extra


def test_no_plan_widens_an_organizations_window(user: User) -> None:
    only_windows(user)
    OrganizationWindow.objects.create(organization=user.organization, kind="requests", amount=1, seconds=3600)
    admit(user, 10)
    refused = refusal_of(user, 10)
    assert refused.extra["limit_of"] == "organization" and "next_plan" not in refused.extra
