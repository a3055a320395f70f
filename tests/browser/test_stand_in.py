"""The note under an answer that another model gives than the one asked for."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from billing.models import Plan, User
from conversations.operations import start
from inference.operations import register_model
from tests.browser.conftest import OpenPage
from tests.people import Person
from tests.site import Site, database_url_of_tests

NOTE = "Answered by echo, because large is busy."


@pytest.fixture(scope="module")
def site(chromium: str, frontend: None, committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A web process and a worker of `echo`; nobody serves `large`."""
    models = tmp_path_factory.mktemp("models")
    (models / "large").mkdir()
    (models / "large" / "ECHO").touch()
    register_model(name="large", engine="echo", context_length=8192)
    folder, urls = tmp_path_factory.mktemp("site"), (database_url_of_tests(), os.environ["REDIS_URL"])
    environment = {"MODEL_DIR": str(models)}
    with Site(folder, database_url=urls[0], redis_url=urls[1], webs=1, environment=environment) as running:
        yield running


@pytest.fixture
def chat(person: Person) -> Iterator[str]:
    """A chat with the busy model, for which the person's plan has a stand-in."""
    plan = Plan.objects.create(slug="stand-in", name="s", stand_in_id="echo")
    User.objects.filter(pk=person.user.pk).update(plan=plan, plan_is_own=True)
    yield f"/c/{start(user=person.user, model='large').pk}"
    User.objects.filter(plan=plan).update(plan=Plan.objects.get(is_default=True))
    plan.delete()


def test_the_note_is_there_while_it_is_written_and_stays(open_page: OpenPage, person: Person, chat: str) -> None:
    page = open_page(person, chat)
    page.send("[[n=60 itl=50 ttft=1]]")
    note = page.answers.last.locator("[data-instead]")
    expect(note).to_have_text(NOTE)
    expect(page.stop_button).to_be_visible()  # it is still being written
    page.go(chat)  # and it is there at once on a page that comes in the middle
    expect(note).to_have_count(1)
    expect(note).to_have_text(NOTE)
    page.stop_button.click()
    page.wait_for_end()
    expect(note).to_have_text(NOTE)
    expect(page.answers.last.locator(".model")).to_have_text("echo")
