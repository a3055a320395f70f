"""Another answer, another question: beside the first, with a way back."""

import re

from playwright.sync_api import expect

from tests.people import Person


def test_regenerate_edit_and_switch(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.send("First")
    chat.wait_for_text("You said: First")
    chat.wait_for_end()

    chat.act(chat.answers.last, "Another answer")
    expect(chat.answers.last.get_by_text("2/2")).to_be_visible()
    chat.wait_for_end()
    expect(chat.answers).to_have_count(1)

    chat.send("Second")
    chat.wait_for_text("You said: Second")
    chat.wait_for_end()
    chat.act(chat.questions.first, "Edit message")
    box = chat.edit_box
    expect(box).to_be_focused()
    expect(box).to_have_value("First")
    box.fill("Changed")
    box.press("Enter")
    chat.wait_for_text("You said: Changed")
    chat.wait_for_end()
    expect(chat.questions).to_have_count(1)
    expect(chat.questions.first.get_by_text("2/2")).to_be_visible()

    chat.questions.first.get_by_role("link", name="Previous version").click()
    chat.wait_for_text("You said: Second")
    expect(chat.questions.first).to_contain_text("First")
    assert re.search(r"\?leaf=[0-9a-f-]{36}$", chat.path)
    chat.page.reload()
    chat.wait_for_text("You said: Second")
    chat.answers.first.get_by_role("link", name="Previous version").click()
    expect(chat.answers).to_have_count(1)
    expect(chat.answers.first.get_by_text("1/2")).to_be_visible()

    chat.send("Under the first answer")  # goes under what is shown
    chat.wait_for_text("You said: Under the first answer")
    chat.wait_for_end()
    assert "?" not in chat.path
    chat.page.reload()
    expect(chat.questions).to_have_count(2)
    expect(chat.answers.first.get_by_text("1/2")).to_be_visible()


def test_an_edit_that_fails_keeps_what_was_typed(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.send("First")
    chat.wait_for_end()
    chat.page.route("**/edit", lambda route: route.abort())
    chat.composer.press("ArrowUp")
    chat.page.keyboard.press("Control+a")
    chat.page.keyboard.type("Changed")
    chat.page.keyboard.press("Enter")
    expect(chat.edit_box).to_have_value("Changed")
    expect(chat.questions.first).to_contain_text("could not be sent")
    expect(chat.answers).to_have_count(1)
    chat.page.unroute("**/edit")
    chat.edit_box.press("Enter")
    chat.wait_for_text("You said: Changed")


def test_editing_is_called_off_with_escape(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.send("First")
    chat.wait_for_end()
    chat.composer.press("ArrowUp")
    chat.page.keyboard.type(" not")
    chat.page.keyboard.press("Escape")
    expect(chat.questions.locator("[data-text]")).to_have_text("First")
    expect(chat.composer).to_be_focused()


def test_two_tabs_that_write_at_once_lose_nothing(open_page, person: Person) -> None:
    """Case 23."""
    one = open_page(person)
    one.send("Start")
    one.wait_for_end()
    two = open_page(person, one.path, web=1, context=one.page.context)
    one.send("From one [[n=40 itl=25]]")
    expect(two.questions).to_have_count(2)  # seen without a reload
    two.wait_for_text("t00010")
    two.wait_for_end()
    two.send("From two")
    expect(one.questions).to_have_count(3)
    one.wait_for_text("You said: From two")
    one.wait_for_end()
    one.page.reload()
    expect(one.questions.locator("[data-text]")).to_have_text(["Start", re.compile("From one"), "From two"])
