"""The operator's own pages in the admin, as a browser shows them."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from billing.models import LedgerEntry, Organization, PlanChange, User
from inference.models import Generation
from tests.browser.conftest import OpenPage
from tests.browser.test_access import AXE, PHONE, RULES, WIDE
from tests.people import Person

NOW, REPORT = "/admin/inference/worker/now/", "/admin/billing/usageday/report/"


@pytest.fixture
def operator(person: Person) -> Person:
    User.objects.filter(pk=person.user.pk).update(is_staff=True, is_superuser=True)
    return person


@pytest.fixture
def wait_in_line(stranger: Person) -> Iterator[Callable[[], None]]:
    """One more request that waits, for a model without workers as far as anybody sees."""

    def make() -> None:
        Generation.objects.create(
            user=stranger.user, organization_id=stranger.user.organization_id, model_id="echo", prompt_tokens=1,
            grant=1, cancel_requested=True, created_at=timezone.now() - timedelta(seconds=33),
        )  # fmt: skip

    yield make
    Generation.objects.filter(user=stranger.user).delete()


@pytest.fixture
def used(operator: Person, stranger: Person) -> None:
    """A week's usage of many organizations, one of them with a long name; a failure."""
    Organization.objects.filter(pk=stranger.user.organization_id).update(name="Institute for Very Long Names and " * 3)
    for number in range(40):
        mine = number % 3 == 0
        LedgerEntry.objects.create(
            generation_id=uuid4(), model="echo", purpose="chat", prompt_tokens=1000 * number, cached_tokens=100,
            completion_tokens=7 * number, finish_reason="stop", cost_micro=1234 * number,
            user_id=(operator if mine else stranger).user.pk,
            organization_id=(operator if mine else stranger).user.organization_id,
            created_at=timezone.now() - timedelta(days=number % 7),
        )  # fmt: skip
    Generation.objects.create(
        user=operator.user, organization_id=operator.user.organization_id, model_id="echo", prompt_tokens=1, grant=1,
        status="FAILED", finish_reason="error", error_code="worker_died", attempt=4, finished_at=timezone.now(),
        error_message="The server failed several times while writing this answer.",
    )  # fmt: skip


def problems(page: Page) -> list[str]:
    """What axe-core finds in our part of the page; the rest is Django's."""
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate(AXE.read_text())
    found = page.evaluate("rules => axe.run('#content', rules)", RULES)["violations"]
    return [f"{rule['id']}: {[node['html'][:150] for node in rule['nodes']]}" for rule in found]


@pytest.mark.parametrize("path", [NOW, REPORT, f"{REPORT}?by=day", f"{REPORT}?from=x"])
def test_pages_can_be_used_by_everyone(open_page: OpenPage, operator: Person, used: None, path: str) -> None:
    for scheme, size in (("light", WIDE), ("dark", PHONE["viewport"])):
        page = open_page(operator, path, color_scheme=scheme, viewport=size).page  # its colours change slowly
        assert problems(page) == []
        assert page.locator("#content").evaluate(
            "box => box.scrollWidth <= box.clientWidth"
        )  # Django's head is not ours


def test_the_figures_follow_by_themselves(
    open_page: OpenPage, operator: Person, wait_in_line: Callable[[], None]
) -> None:
    page = open_page(operator, NOW).page
    waiting = page.locator("section").first.get_by_text("Waiting:")
    expect(waiting).to_have_text("Waiting: 0")
    page.locator(".wide").first.focus()
    wait_in_line()
    expect(waiting).to_have_text("Waiting: 1")
    expect(page.locator(".wide").first).to_be_focused()
    page.get_by_label("Refresh every 2 seconds").uncheck()
    before = page.locator("#now .help").first.inner_text()
    wait_in_line()
    page.context.set_offline(True)
    page.get_by_label("Refresh every 2 seconds").check()
    expect(page.get_by_text("this is from before")).to_be_visible()
    assert page.locator("#now .help").first.inner_text() == before
    page.context.set_offline(False)
    expect(page.get_by_text("this is from before")).to_be_hidden()
    expect(waiting).to_have_text("Waiting: 2")


def test_from_an_organization_to_a_persons_days_and_the_csv(open_page: OpenPage, operator: Person, used: None) -> None:
    page = open_page(operator, REPORT).page
    page.get_by_role("link", name=operator.user.email, exact=True).click()
    page.get_by_role("link", name=operator.user.email, exact=True).click()
    expect(page.get_by_label("By")).to_have_value("day")
    expect(page.locator("#content tbody tr")).to_have_count(7)
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Export as CSV").click()
    assert downloading.value.suggested_filename.startswith("usage-day-")
    lines = downloading.value.path().read_text().splitlines()
    assert len(lines) == 1 + 7
    page.get_by_role("link", name=f"Without {operator.user.email}").first.click()
    expect(page.locator(".chosen li")).to_have_count(1)


def test_enter_in_the_field_of_days_takes_no_plan(open_page: OpenPage, operator: Person) -> None:
    page = open_page(operator, f"/admin/billing/user/{operator.user.pk}/change/").page
    days = page.get_by_placeholder("∞")
    days.fill("3")
    days.press("Enter")
    page.get_by_role("button", name="Pro", exact=True).click()
    expect(page.get_by_text("is on Pro for 3 days.")).to_be_visible()
    assert [change.plan for change in PlanChange.objects.filter(user_id=operator.user.pk)] == ["pro"]
