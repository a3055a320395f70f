"""The usage page, and what a person is told about limits, tokens and cost."""

import re
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from billing.models import LedgerEntry, Plan, PlanWindow, User
from conversations import wording
from inference.models import ServedModel
from tests.browser.test_access import assert_good, problems
from tests.faults.limits import Limit, limit
from tests.people import Person

__all__ = ["limit"]
USAGE = "/settings/usage/"


@pytest.fixture
def next_plan() -> Iterator[None]:
    """A plan above the person's with a window of 200 messages in 3 hours."""
    plan = Plan.objects.create(slug="larger", name="Larger", band=1)
    PlanWindow.objects.create(plan=plan, kind="requests", amount=200, seconds=3 * 3600)
    others = list(Plan.objects.filter(band__gt=0, is_offered=True).exclude(pk=plan.pk).values_list("pk", flat=True))
    Plan.objects.filter(pk__in=others).update(is_offered=False)
    yield
    plan.delete()
    Plan.objects.filter(pk__in=others).update(is_offered=True)


def used(person: Person, days_ago: int, **fields: object) -> None:
    values: dict[str, object] = {
        "generation_id": uuid4(), "user_id": person.user.pk, "organization_id": person.user.organization_id,
        "model": "echo", "purpose": "chat", "prompt_tokens": 1000, "completion_tokens": 500, "finish_reason": "stop",
        "cost_micro": 1_500_000, "created_at": timezone.now() - timedelta(days=days_ago),
    }  # fmt: skip
    LedgerEntry.objects.create(**(values | fields))


def test_charts_with_their_tables_for_everyone(open_page, person: Person, stranger: Person, limit: Limit) -> None:
    limit(("requests", 20, 3 * 3600), ("tokens", 40_000, 86_400))
    User.objects.filter(pk=stranger.user.pk).update(organization=person.user.organization)
    used(person, 1)
    used(person, 3, model="other")
    used(stranger, 2, organization_id=person.user.organization_id)
    page = open_page(person, USAGE).page
    # It is drawn.
    colours = page.locator("canvas").first.evaluate(
        "canvas => new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
        ".data.buffer)).size"
    )
    assert colours > 5
    summary = page.get_by_text("As a table").first
    summary.focus()
    page.keyboard.press("Enter")
    table = page.get_by_role("group", name="Tokens by day and model")
    expect(table.get_by_role("columnheader")).to_have_text(["Day", "echo", "other", "All"])
    expect(table.locator("tbody tr")).to_have_count(30)
    expect(table.locator("tbody tr").nth(28)).to_contain_text("1,500")
    expect(page.get_by_role("meter", name="Messages in 3 hours")).to_be_visible()
    expect(page.get_by_role("region", name="Members of")).to_contain_text(stranger.user.email)
    page.get_by_role("link", name="Member", exact=True).click()
    expect(page.get_by_role("columnheader", name="Member")).to_have_attribute("aria-sort", "ascending")
    page.get_by_text("As a table").nth(1).click()
    assert_good(page)


def test_the_days_to_look_at_and_their_csv(open_page, person: Person) -> None:
    used(person, 40)
    page = open_page(person, USAGE).page
    expect(page.get_by_text("Nothing was used in these days.")).to_be_visible()
    assert_good(page)
    page.get_by_role("link", name="90 days").click()
    expect(page.get_by_role("link", name="90 days")).to_have_attribute("aria-current", "true")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").first.click()
    text = download.value.path().read_text()
    assert text.startswith("day,model,key,key_name,requests") and "1000,0,500,1500,1500000" in text
    today = timezone.now().date()
    page.get_by_label("From", exact=True).fill((today - timedelta(days=3)).isoformat())
    page.get_by_label("To", exact=True).fill((today - timedelta(days=5)).isoformat())
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("alert")).to_contain_text("start is later than end")


def test_a_refused_message_says_what_is_used_up_and_stays(
    open_page, person: Person, limit: Limit, next_plan: None
) -> None:
    limit(("requests", 1, 3 * 3600))
    User.objects.filter(pk=person.user.pk).update(time_zone="Asia/Kolkata")
    chat = open_page(person)
    chat.send("One")
    chat.wait_for_end()
    chat.send("Two, with some thought in it")
    expect(chat.error).to_contain_text("You have used all 1 messages for 3 hours.")
    soon = (timezone.now() + timedelta(hours=3)).astimezone(User.objects.get(pk=person.user.pk).zone)
    shown = re.search(r"More from .*?(\d\d):(\d\d)\.", chat.error.inner_text())
    assert shown
    minutes = int(shown[1]) * 60 + int(shown[2]) - (soon.hour * 60 + soon.minute)
    assert minutes % 1440 in range(5) or minutes % 1440 > 1437  # a bucket late at most
    expect(chat.error).to_contain_text("Larger gives 200.")
    expect(chat.error.get_by_role("button")).to_have_count(0)
    expect(chat.composer).to_have_value("Two, with some thought in it")
    expect(chat.questions).to_have_count(1)
    assert problems(chat.page) == []
    chat.page.reload()
    expect(chat.composer).to_have_value("Two, with some thought in it")
    chat.send("Two")
    chat.error.get_by_role("link", name="See your usage").click()
    expect(chat.page.get_by_text("1 of 1 used, 0 left")).to_be_visible()


def test_an_answer_that_a_limit_cut_says_when_there_is_more(open_page, person: Person, limit: Limit) -> None:
    limit(("tokens", 200, 3600))
    chat = open_page(person)
    chat.send("Count [[n=500 itl=1 ttft=1]]")
    chat.wait_for_end()
    ending = chat.answers.last.locator(".ending")
    expect(ending).to_have_text(re.compile(r"Your tokens are used up · renews (\w+ \d+, )?\d\d:\d\d · See your usage"))
    expect(chat.page.locator("#live p").last).to_have_text("Your tokens are used up")
    chat.page.reload()
    expect(ending).to_contain_text("Your tokens are used up")


@pytest.mark.parametrize("options", [{}, {"viewport": {"width": 360, "height": 740}, "has_touch": True}])
def test_tokens_and_cost_of_an_answer(open_page, person: Person, options: dict[str, object]) -> None:
    ServedModel.objects.filter(pk="echo").update(price_completion_micro=10_000_000)
    chat = open_page(person, **options)
    chat.send("Count [[n=4 itl=1]]")
    chat.wait_for_end()
    button = chat.answers.last.get_by_role("button", name="Tokens and cost")
    tip = chat.answers.last.get_by_role("tooltip", include_hidden=True)
    expect(tip).to_be_hidden()
    if options:
        button.tap()
    else:
        button.hover()
    expect(tip).to_be_visible()
    done = person.newest()
    expect(tip).to_contain_text(f"{done.prompt_tokens} tokens")
    expect(tip).to_contain_text(re.compile(rf"Answer\s+{done.completion_tokens} tokens"))
    expect(tip).to_contain_text(wording.money(10 * done.completion_tokens))
    box, room = tip.bounding_box(), chat.page.locator("[data-scroll]").bounding_box()
    assert box and room and box["x"] >= room["x"] and box["x"] + box["width"] <= room["x"] + room["width"]
    assert box["y"] >= room["y"] and box["y"] + box["height"] <= room["y"] + room["height"]
    assert problems(chat.page) == []
    chat.page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    chat.page.mouse.move(5, 5)
    chat.composer.focus()
    button.focus()
    expect(tip).to_be_visible()
    expect(button).to_have_accessible_description(re.compile("Prompt"))
    ServedModel.objects.filter(pk="echo").update(price_completion_micro=0)


def test_a_message_that_is_too_long_is_to_be_shortened(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.composer.fill("long " * 9000)
    chat.send_button.click()
    expect(chat.error).to_contain_text(re.compile(r"Your message has \d+ tokens, and at most \d+ fit\. Shorten it\."))
    expect(chat.error.get_by_role("button")).to_have_count(0)
    expect(chat.composer).to_have_value("long " * 9000)


def test_a_model_that_was_taken_away_is_no_log_out(open_page, person: Person, limit: Limit) -> None:
    limit()
    chat = open_page(person)
    chat.send("Hello")
    chat.wait_for_end()
    small = ServedModel.objects.create(name="small", engine="echo", context_length=100, max_output_tokens=100)
    plan = Plan.objects.get(slug=f"p{person.user.pk.hex[:20]}")
    plan.allowed_models.set([small])
    try:
        chat.page.wait_for_timeout(5500)  # the web processes keep rules for 5 s
        chat.send("Again")
        expect(chat.error).to_contain_text("Your plan does not include echo.")
        expect(chat.error.get_by_role("link")).to_have_count(0)
    finally:
        plan.allowed_models.clear()
        small.delete()


def test_a_new_key_is_copied_and_not_made_again_by_a_reload(open_page, person: Person) -> None:
    page = open_page(person, "/settings/keys/").page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Make a key").click()
    secret = page.get_by_role("status").locator("code").first.inner_text()
    assert secret.startswith("sk-chat-")
    page.get_by_role("button", name="Copy", description="The key “laptop”").click()
    expect(page.get_by_role("status").get_by_role("button").first).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == secret
    assert problems(page) == []
    page.reload()
    assert secret not in page.content()
    assert person.user.api_keys.filter(name="laptop").count() == 1
    assert page.locator("th").first.evaluate("head => getComputedStyle(head).textAlign") == "left"
