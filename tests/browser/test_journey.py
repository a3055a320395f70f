"""From the sign-up to the end of a chat, as a person would do it."""

import re
from uuid import uuid4

from playwright.sync_api import expect

from tests.people import Person


def test_sign_up_chat_rename_archive_delete(open_page, db: None) -> None:
    chat = open_page(None, "/")
    page = chat.page
    assert chat.path.startswith("/accounts/login/")
    page.get_by_role("link", name="Sign up").click()
    page.get_by_label("Email").fill(f"{uuid4().hex}@example.org")
    for field in page.locator("input[type=password]").all():
        field.fill("tall-trees-and-hills-7")
    page.locator("main form button").click()

    expect(page.get_by_role("heading", name="What can I help with?")).to_have_count(0)  # it is no heading
    expect(page.get_by_text("What can I help with?")).to_be_visible()
    expect(chat.composer).to_be_focused()
    expect(page.get_by_text("Your chats appear here.")).to_be_visible()

    chat.send("Good morning")
    expect(chat.questions).to_have_text([re.compile("Good morning")])
    chat.wait_for_text("You said: Good morning")
    chat.wait_for_end()
    assert re.fullmatch(r"/c/[0-9a-f-]{36}", chat.path)
    expect(chat.composer).to_be_focused()
    expect(chat.chats).to_have_text([re.compile("Good morning")])
    expect(chat.chats.locator("a")).to_have_attribute("aria-current", "page")

    chat.menu(chat.chats.first, "Rename")
    page.get_by_label("Title").fill("Greetings")
    page.get_by_label("Title").press("Enter")
    expect(chat.chats).to_have_text([re.compile("Greetings")])
    expect(page.locator("[data-title]")).to_have_text("Greetings")

    chat.menu(chat.chats.first, "Archive")
    expect(page.get_by_text("What can I help with?")).to_be_visible()
    expect(chat.chats).to_have_count(0)
    page.get_by_role("button", name="Archived chats").click()
    expect(chat.chats).to_have_text([re.compile("Greetings")])
    chat.chats.first.locator("a").click()
    expect(chat.questions).to_have_text([re.compile("Good morning")])

    chat.menu(chat.chats.first, "Delete")
    page.get_by_role("button", name="Keep").click()
    expect(chat.chats).to_have_count(1)
    chat.menu(chat.chats.first, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("What can I help with?")).to_be_visible()
    assert chat.path == "/"


def test_chats_are_found_by_title_and_swapped_without_a_new_page(open_page, person: Person) -> None:
    chat = open_page(person)
    for words in ("Apples and pears", "Bread"):
        chat.page.keyboard.press("Control+Shift+O")
        expect(chat.page.get_by_text("What can I help with?")).to_be_visible()
        chat.send(words)
        chat.wait_for_text(f"You said: {words}")
        chat.wait_for_end()
    chat.page.evaluate("window.same = true")
    chat.page.keyboard.press("Control+k")
    chat.page.keyboard.type("pear")
    expect(chat.chats).to_have_text([re.compile("Apples and pears")])
    chat.chats.first.locator("a").click()
    chat.wait_for_text("You said: Apples and pears")
    chat.page.go_back()
    chat.wait_for_text("You said: Bread")
    chat.page.go_forward()
    chat.wait_for_text("You said: Apples and pears")
    assert chat.page.evaluate("window.same")
    expect(chat.page).to_have_title("Apples and pears")


def test_a_chat_of_another_person_is_not_there(open_page, person: Person, stranger: Person) -> None:
    theirs = stranger.chat()
    chat = open_page(person, f"/c/{theirs}")
    expect(chat.page.get_by_role("heading", name="There is nothing here")).to_be_visible()
    assert chat.page.request.get(f"{chat.url}/c/{theirs}").status == 404


def test_a_session_that_ended_leads_to_the_login_page(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.page.context.clear_cookies()
    chat.send("Hello")
    expect(chat.page.locator(".dock").get_by_role("link", name="Log in")).to_be_visible()
    expect(chat.composer).to_have_value("Hello")
    chat.page.get_by_role("searchbox").fill("x")
    expect(chat.page).to_have_url(re.compile("/accounts/login/"))
