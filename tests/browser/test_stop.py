"""Stop, at any time, ends the answer for good (case 8)."""

import re

import pytest
from playwright.sync_api import expect

from inference.models import Generation
from tests.browser.pages import ChatPage
from tests.people import Person, numbers


def assert_stopped_for_good(chat: ChatPage, person: Person) -> None:
    """Also after a reload, and the next message gets an answer."""
    expect(chat.answers.last).to_contain_text("Stopped by you")
    expect(chat.composer).to_be_focused()
    person.wait_for_status("CANCELLED")
    text = chat.answer.inner_text()
    chat.page.reload()
    expect(chat.answers.last).to_contain_text("Stopped by you")
    assert chat.answer.inner_text() == text
    chat.send("Go on [[text=All right.]]")  # an order of its own: both questions are one turn to the engine
    chat.wait_for_text("All right.")
    chat.wait_for_end()


@pytest.mark.parametrize("wait_ms", [0, 20, 250])
def test_before_the_first_token(open_page, person: Person, wait_ms: int) -> None:
    chat = open_page(person)
    chat.send("Slow [[n=50 ttft=5000]]")
    chat.page.wait_for_timeout(wait_ms)  # how fast the person is: the request, then the queue, then the engine
    chat.stop_button.click()
    assert_stopped_for_good(chat, person)
    assert Generation.objects.filter(user=person.user).count() == 2


def test_in_mid_answer_with_escape(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.send("Count [[n=400 itl=25 ttft=20]]")
    chat.wait_for_text("t00010")
    chat.page.keyboard.press("Escape")
    assert_stopped_for_good(chat, person)
    shown = numbers(chat.answers.first.locator("[data-text]").inner_text() + " ")
    assert shown == list(range(len(shown)))
    assert 10 <= len(shown) < 100


def test_from_another_tab(open_page, person: Person) -> None:
    one = open_page(person)
    one.send("Count [[n=400 itl=25 ttft=20]]")
    one.wait_for_text("t00010")
    two = open_page(person, one.path, web=1, context=one.page.context)
    two.wait_for_text("t00010")
    two.stop_button.click()
    for chat in (one, two):
        expect(chat.answers.last).to_contain_text("Stopped by you")
    expect(one.send_button).to_be_visible()
    assert one.text() == two.text()


def test_deleting_the_chat_stops_it_and_other_chats_go_on(open_page, person: Person) -> None:
    """Case 24."""
    one = open_page(person)
    one.send("Kept [[n=60 itl=25]]")
    one.wait_for_text("t00003")
    two = open_page(person, "/", web=1, context=one.page.context)
    two.send("Deleted [[n=400 itl=25]]")
    two.wait_for_text("t00003")
    two.menu(two.chats.filter(has_text=re.compile("Deleted")), "Delete")
    two.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(two.page.get_by_text("What can I help with?")).to_be_visible()
    one.wait_for_end()
    assert numbers(one.text()) == list(range(60))
    person.wait_for_status("CANCELLED")
    expect(one.chats).to_have_count(1)  # told to the other tab
