"""A person chats with a real model: the answer grows, goes on after a reload, and is stopped."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from inference.models import Generation
from tests.browser.conftest import ARGUMENTS, chromium, frontend, guard, open_context, open_page
from tests.browser.pages import ChatPage
from tests.people import Person

__all__ = ["chromium", "frontend", "guard", "open_context", "open_page"]
pytestmark = [pytest.mark.vllm, pytest.mark.browser, pytest.mark.usefixtures("frontend")]


@pytest.fixture
def browser(chromium: str) -> Iterator[Browser]:
    """For this test only: while Playwright runs, no other test of this thread can have an event loop."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield launched
        launched.close()


def test_a_person_chats_with_the_real_model(open_page: Callable[..., ChatPage], person: Person) -> None:
    chat = open_page(person)
    chat.send("Tell me a long story about a river.")
    expect(chat.answer).not_to_be_empty()
    seen = chat.answer.inner_text()
    chat.page.wait_for_function(
        "t => document.querySelector('.turn.answer [data-text]').innerText.length > t", arg=len(seen)
    )

    chat.page.reload()
    expect(chat.answer).to_contain_text(seen.split()[0])
    chat.stop_button.click()
    expect(chat.send_button).to_be_visible()
    expect(chat.answers.last).to_contain_text("Stopped by you")
    row = Generation.objects.get(user=person.user, purpose="chat")
    assert (row.status, row.completion_tokens > 0) == ("CANCELLED", True)

    chat.send("Thank you. Say goodbye.")
    expect(chat.answers).to_have_count(2)
    expect(chat.send_button).to_be_visible(timeout=30_000)
    assert Generation.objects.filter(user=person.user, purpose="chat", status="FINISHED").count() == 1
