"""Writing a message: keys, drafts, repeats, and errors that lose nothing."""

import json
import re
from functools import partial

from playwright.sync_api import Route, expect

from conversations.models import Message
from tests.people import Person


def test_keys(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.composer.press_sequentially("one")
    chat.composer.press("Shift+Enter")
    chat.composer.press_sequentially("two")
    expect(chat.composer).to_have_value("one\ntwo")
    # The Enter that ends an input method's composition (Safari tells by the key code only) sends nothing.
    for enter in ("{isComposing: true}", "{keyCode: 229}"):
        chat.composer.evaluate(
            f"area => area.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter', bubbles: true, ...{enter}}}))"
        )
    expect(chat.questions).to_have_count(0)
    chat.composer.press("Enter")
    expect(chat.questions.locator("[data-text]")).to_have_text("one\ntwo")
    chat.wait_for_end()
    chat.page.locator("[data-scroll]").focus()
    chat.page.keyboard.press("?")
    expect(chat.page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_hidden()
    chat.composer.press("?")
    expect(chat.composer).to_have_value("?")


def test_it_grows_to_ten_lines(open_page, person: Person) -> None:
    chat = open_page(person)
    heights = []
    for lines in (1, 5, 10, 30):
        chat.composer.fill("\n".join("x" * lines))
        heights.append(chat.composer.bounding_box()["height"])
    assert heights == [24, 120, 240, 240]


def test_a_draft_outlives_a_reload_for_each_chat(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.composer.fill("for a new chat")
    chat.page.reload()
    expect(chat.composer).to_have_value("for a new chat")
    chat.composer.press("Enter")
    chat.wait_for_end()
    chat.composer.fill("for this one")
    path = chat.path
    chat.page.get_by_role("link", name="New chat").first.click()
    expect(chat.page.get_by_text("What can I help with?")).to_be_visible()
    expect(chat.composer).to_have_value("")
    chat.go(path)
    expect(chat.composer).to_have_value("for this one")


def test_a_double_click_and_a_repeat_make_one_message(open_page, person: Person) -> None:
    """Case 22: the first request arrives, its answer is lost."""
    chat = open_page(person)
    chat.composer.fill("Once")
    chat.send_button.dblclick()
    chat.wait_for_text("You said: Once")
    chat.wait_for_end()

    def arrive_and_vanish(route: Route) -> None:
        route.fetch()
        route.abort()

    chat.page.route("**/messages", arrive_and_vanish, times=1)
    chat.send("Twice?")
    expect(chat.error).to_contain_text("could not be sent")
    chat.error.get_by_role("button", name="Try again").click()
    chat.wait_for_text("You said: Twice?")
    chat.wait_for_end()
    chat.page.reload()
    expect(chat.questions.locator("[data-text]")).to_have_text(["Once", "Twice?"])
    assert Message.objects.filter(conversation__user=person.user).count() == 4


def refuse(answer: dict[str, object], route: Route) -> None:
    route.fulfill(**answer)


REFUSALS = [
    (429, "too_many_requests", "You have 4 answers running.", "You have 4 answers running."),
    (503, "unavailable", "", "The site is busy."),
    (500, "internal", "", "The site is busy."),
    (409, "answer_running", "", "An answer is still being written here."),
]


def test_a_refusal_stands_in_place_and_can_be_tried_again(open_page, person: Person) -> None:
    chat = open_page(person)
    for status, code, message, said in REFUSALS:
        body = json.dumps({"error": {"code": code, "message": message}})
        refused = {"status": status, "body": body, "content_type": "application/json"}
        chat.page.route("**/messages", partial(refuse, refused), times=1)
        chat.send(f"Please {status}")
        expect(chat.error).to_contain_text(said)
        expect(chat.composer).to_have_value(f"Please {status}")
        chat.error.get_by_role("button", name="Try again").click()
        chat.wait_for_text(f"You said: Please {status}")
        expect(chat.error).to_be_hidden()
        chat.wait_for_end()
    expect(chat.questions).to_have_count(len(REFUSALS))


def test_text_that_cannot_be_stored_is_refused_not_lost(open_page, person: Person) -> None:
    """Case 25."""
    chat = open_page(person)
    chat.send("Good")
    chat.wait_for_end()
    for bad in ("a\ud800b", "a\x00b"):
        chat.composer.evaluate("(area, text) => { area.value = text }", bad)
        chat.composer.press("Enter")
        expect(chat.error).to_be_visible()
    chat.page.locator("#search").evaluate("(box, text) => { box.value = text }", "a\x00b")
    chat.page.locator("#search").press("Enter")
    expect(chat.page.locator("#chats")).to_contain_text("Try again")
    chat.page.locator("#search").fill("goo")
    expect(chat.chats).to_have_text([re.compile("Good")])
