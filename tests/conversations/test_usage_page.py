"""/settings/usage/: limits, sums in the person's time zone, members for owners; what an answer took."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from billing import counters
from billing.models import LedgerEntry, User
from billing.operations import Principal, issue_key
from billing.usage import summed
from billing.usage_query import UsageQuery
from chatsite.stores import free_port
from conversations import operations, wording
from conversations.models import Conversation
from conversations.usage_report import report
from inference.models import Generation, ServedModel
from tests.billing.limits import admit, flush, only_windows
from tests.conversations.conftest import Finish

PATH = "/settings/usage/"
DAYS = {"start": "2026-03-01", "end": "2026-03-02"}


def browser_of(user: User) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client


@pytest.fixture
def browser(user: User) -> Client:
    return browser_of(user)


def entry(user: User, time: str = "2026-03-01T10:00", **fields: object) -> LedgerEntry:
    values: dict[str, object] = {
        "generation_id": uuid4(), "user_id": user.pk, "organization_id": user.organization_id, "model": "a",
        "purpose": "chat", "prompt_tokens": 1000, "completion_tokens": 500, "finish_reason": "stop",
        "cost_micro": 1_234_500, "created_at": datetime.fromisoformat(time).replace(tzinfo=UTC),
    }  # fmt: skip
    return LedgerEntry.objects.create(**(values | fields))


def cells(html: str) -> list[list[str]]:
    """The rows of all tables, as texts."""
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.S)
    texts = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in rows]
    return [[re.sub(r"<[^>]*>|\s+", " ", text).strip() for text in row] for row in texts]


def page(browser: Client, **query: str) -> str:
    answer = browser.get(PATH, {**DAYS, **query})
    assert answer.status_code == 200
    return answer.content.decode().partition('<div id="toasts"')[0]  # what follows are words for the scripts


def test_tables_by_day_model_and_key(browser: Client, user: User, stranger: User) -> None:
    key, _ = issue_key(user=user, name="<b>laptop</b>")
    entry(user)
    entry(user, "2026-03-02T10:00", model="b", api_key_id=key.pk, cost_micro=10_000)
    entry(user, "2026-03-02T10:00", api_key_id=uuid4(), cost_micro=0)
    entry(stranger, prompt_tokens=77_777)
    html = page(browser)
    found = cells(html)
    assert ["March 1, 2026", "1,500", "0", "1,500"] in found
    assert ["March 2, 2026", "1,500", "1,500", "3,000"] in found
    assert ["March 2, 2026", "2", "0.01 USD"] in found
    assert ["a", "2", "2,000", "0", "1,000", "1.234500 USD"] in found
    assert ["In the browser", "1", "1,000", "0", "500", "1.234500 USD"] in found
    assert ["&lt;b&gt;laptop&lt;/b&gt;", "1", "1,000", "0", "500", "0.01 USD"] in found
    assert ["A key that is gone", "1", "1,000", "0", "500", "0.00 USD"] in found
    assert "77,777" not in html and "Members of" not in html
    assert 'href="/api/v1/usage?start=2026-03-01&amp;end=2026-03-02&amp;tz=UTC&amp;format=csv' in html


def test_days_are_those_of_the_persons_zone(browser: Client, user: User) -> None:
    entry(user, "2026-03-01T23:30")
    User.objects.update(time_zone="Europe/Zurich")
    html = page(browser)
    assert ["March 2, 2026", "1", "1.234500 USD"] in cells(html)
    assert "days in Europe/Zurich" in html


def test_many_models_have_one_colour_for_the_rest(user: User) -> None:
    for number in range(10):
        entry(user, model=f"m{number}", prompt_tokens=100 * number)
    first = datetime.fromisoformat(DAYS["start"]).date()
    query = UsageQuery("user_id", user.pk, first, first, user.zone, ("day", "model", "key"))
    found = report(query)
    assert found.series == [*(f"m{number}" for number in range(9, 2, -1)), "Other models"]
    assert sum(found.days[0].tokens) == found.totals["total_tokens"] == sum(r["total_tokens"] for r in summed(query))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"start": "2026-03-02", "end": "2026-03-01"}, "start is later than end"),
        ({"start": "2020-01-01"}, "at most 366 days"),
        ({"end": "<script>"}, "end must be a day"),
        ({"start": "\0"}, "start must be a day"),
    ],
)
def test_bad_periods_are_explained_on_the_page(browser: Client, query: dict[str, str], words: str) -> None:
    answer = browser.get(PATH, {**DAYS, **query})
    assert answer.status_code == 400
    assert words in answer.content.decode() and "Nothing was used" in answer.content.decode()


def test_limits_say_what_is_used_left_and_when_there_is_more(browser: Client, user: User) -> None:
    only_windows(user, ("requests", 20, 3 * 3600), ("tokens", 40_000, 86_400))
    assert "More from" not in page(browser)
    admit(user, 100, asked=400)
    html = page(browser)
    assert "Messages in 3 hours" in html and "1 of 20 used, 19 left" in html
    assert "Tokens in a day" in html and "500 of 40,000 used, 39,500 left" in html
    assert '<meter min="0" max="40000" value="500"' in html and "All of it is back from" in html


@pytest.fixture
def no_counters(settings: Any) -> Iterator[None]:
    """Nobody listens where Valkey should be."""
    settings.REDIS_URLS = [f"redis://127.0.0.1:{free_port()}"]
    counters.store.cache_clear()
    yield
    counters.store.cache_clear()


def test_the_page_stands_while_the_counters_are_away(browser: Client, user: User, no_counters: None) -> None:
    entry(user)
    html = page(browser)
    assert "cannot be read right now" in html and "1,500" in html


def test_a_larger_plan_is_offered_where_there_is_a_page_for_it(browser: Client, settings: Any) -> None:
    assert "Get more" not in page(browser)
    settings.UPGRADE_URL = "https://example.org/plans"
    assert '<a class="button" href="https://example.org/plans">Get more</a>' in page(browser)


# -- organizations ----------------------------------------------------------------------------------


@pytest.fixture
def member(user: User, stranger: User) -> User:
    User.objects.filter(pk=stranger.pk).update(organization=user.organization)
    stranger.refresh_from_db()
    return stranger


def test_owners_see_members_sorted(browser: Client, user: User, member: User) -> None:
    entry(member, prompt_tokens=4000)
    entry(user)
    entry(user, prompt_tokens=0, user_id=uuid4())

    def names(**query: str) -> list[str]:
        html = page(browser, **query).partition("Members of")[2]
        return [row[0] for row in cells(html) if len(row) == 5][1:-1]

    assert names() == ["stranger@example.org", "user@example.org", "Former member"]
    assert names(sort="tokens") == names()[::-1]
    assert names(sort="member") == ["stranger@example.org", "user@example.org", "Former member"]
    assert names(sort="planet\0") == names()
    html = page(browser)
    assert ["stranger@example.org", "1", "4,500", "1.234500 USD", "69.2 %"] in cells(html)
    assert ["All", "3", "6,500", "3.703500 USD", ""] in cells(html)
    assert 'aria-sort="descending"' in html


def test_members_see_their_own_only(user: User, member: User) -> None:
    entry(user, prompt_tokens=4000)
    html = page(browser_of(member))
    assert "Members of" not in html and "user@example.org" not in html and "4,500" not in html


# -- one answer -------------------------------------------------------------------------------------


@pytest.fixture
def answered(principal: Principal, conversation: Conversation, echo_model: ServedModel, finish: Finish) -> Generation:
    """An answer of two tokens to a prompt, at a price, that waited 1 s and took 2.5 s."""
    ServedModel.objects.update(price_prompt_micro=1_000_000, price_completion_micro=2_000_000)
    generation = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi").generation
    now = timezone.now()
    Generation.objects.filter(pk=generation.pk).update(
        status="RUNNING", created_at=now - timedelta(seconds=3.5), started_at=now - timedelta(seconds=2.5)
    )
    finish(generation, "Yo")
    generation.refresh_from_db()
    return generation


def test_tokens_and_cost_stand_beside_an_answer(
    browser: Client, api: APIClient, conversation: Conversation, answered: Generation
) -> None:
    prompt = answered.prompt_tokens
    html = browser.get(f"/c/{conversation.pk}").content.decode()
    tip = re.sub(r"<[^>]*>|\s+", " ", html.partition('role="tooltip"')[2].partition("</span>\n</span>")[0])
    assert f"Prompt {prompt}" in " ".join(tip.split()) and "Answer 2 tokens" in " ".join(tip.split())
    assert f"{(prompt + 4) / 1e6:.6f}" in tip and "2.5 s" in tip and "1.0 s" in tip and "echo" in tip
    items = api.get(f"/api/v1/conversations/{conversation.pk}/messages").json()["items"]
    assert items[0]["usage"] is None
    assert items[1]["usage"] == {
        "prompt_tokens": prompt, "cached_tokens": 0, "completion_tokens": 2, "total_tokens": prompt + 2,
        "cost_micro": prompt + 4,
    }  # fmt: skip


def test_an_answer_that_is_being_written_has_no_usage_yet(
    browser: Client, api: APIClient, principal: Principal, conversation: Conversation
) -> None:
    operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    assert 'role="tooltip"' not in browser.get(f"/c/{conversation.pk}").content.decode()
    items = api.get(f"/api/v1/conversations/{conversation.pk}/messages").json()["items"]
    assert items[1]["usage"] is None and items[1]["status"] == "WAITING"


def test_an_answer_cut_by_a_limit_says_when_there_is_more(
    browser: Client, api: APIClient, user: User, conversation: Conversation, answered: Generation
) -> None:
    def shown(renews_at: datetime | None) -> str:
        Generation.objects.update(finish_reason="limit_reached", renews_at=renews_at)
        conversation.messages.filter(generation=answered).update(finish_reason="limit_reached")
        return browser.get(f"/c/{conversation.pk}").content.decode()

    User.objects.update(time_zone="Asia/Kolkata")
    later = timezone.now() + timedelta(days=40)
    at = later.astimezone(user.zone.__class__("Asia/Kolkata")) + timedelta(minutes=1)
    html = shown(later)
    assert f"Your tokens are used up · renews {at:%B} {at.day}, {at:%H:%M}" in html
    assert "See your usage" in html and 'data-do="continue"' not in html
    item = api.get(f"/api/v1/conversations/{conversation.pk}/messages").json()["items"][1]
    assert datetime.fromisoformat(item["renews_at"]) == later
    past = shown(timezone.now() - timedelta(seconds=1))
    assert "Your tokens were used up" in past and 'data-do="continue"' in past
    capped = shown(None)
    assert "Your plan&#x27;s longest answer is reached" in capped and 'data-do="continue"' in capped


def test_deleting_the_chat_changes_no_sum(
    browser: Client, api: APIClient, user: User, conversation: Conversation, answered: Generation
) -> None:
    """Case 20."""
    before = api.get("/api/v1/usage").json(), api.get("/api/v1/limits").json()["items"][0]["used"]
    assert before[0]["totals"]["requests"] == 1
    operations.delete_conversation(user=user, conversation_id=conversation.pk)
    assert (api.get("/api/v1/usage").json(), api.get("/api/v1/limits").json()["items"][0]["used"]) == before
    flush()
    assert api.get("/api/v1/limits").json()["items"][0]["used"] == before[1]


@pytest.mark.parametrize(
    ("micro", "text"),
    [(0, "0.00"), (1, "0.000001"), (10_000, "0.01"), (1_234_567_890_000, "1,234,567.89"), (-500_000, "-0.50")],
)
def test_money(micro: int, text: str) -> None:
    assert wording.money(micro) == f"{text}\N{NO-BREAK SPACE}USD"
