"""Everyone can use it: axe-core, a screen reader's view, the keyboard alone, a phone (case 46)."""

import json

import pytest
from playwright.sync_api import Page, expect

from tests.people import Person
from tests.site import REPOSITORY

AXE = REPOSITORY / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
WIDE = {"width": 1280, "height": 800}
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True}


def problems(page: Page) -> list[str]:
    """What axe-core finds, as it stands there."""
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate(AXE.read_text())
    found = page.evaluate("rules => axe.run(document, rules)", RULES)["violations"]
    return [json.dumps([rule["id"], rule["help"], [node["html"][:150] for node in rule["nodes"]]]) for rule in found]


def assert_fits(page: Page) -> None:
    """Nothing but code and tables scrolls sideways."""
    for box in ("html", "#main", "#main > section, #main > div"):
        too_wide = (
            "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth).map(box => box.outerHTML.slice(0, 80))"
        )
        assert page.locator(box).evaluate_all(too_wide) == []


def assert_good(page: Page) -> None:
    """Light and wide, dark and on a phone."""
    for scheme, size in (("light", WIDE), ("dark", PHONE["viewport"])):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        assert problems(page) == []
        assert_fits(page)


@pytest.mark.parametrize("path", ["/accounts/login/", "/accounts/signup/", "/accounts/password/reset/"])
def test_pages_before_the_login(open_page, db: None, path: str) -> None:
    assert_good(open_page(None, path).page)


@pytest.mark.parametrize(
    "path", ["/", "/settings/", "/settings/keys/", "/settings/usage/", "/settings/delete/", "/nothing-here"]
)
def test_pages(open_page, person: Person, path: str) -> None:
    assert_good(open_page(person, path).page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_chat_with_everything(open_page, person: Person, scheme: str) -> None:
    chat = open_page(person, color_scheme=scheme, **PHONE)
    wide = "x" * 200
    code = f"```python\nfor n in range(3): print('{wide}')  # comment\n```"
    table = f"| a | b |\n|---|---|\n| {wide} | 2 |"
    chat.send(f"Say {wide} [[itl=1 text=## Part\n\nWords {wide}\n\n{code}\n\n{table}\n\n> quote\n\n1. one\n\nEnd]]")
    chat.wait_for_text("Words")
    assert problems(chat.page) == []  # while it streams
    chat.wait_for_end()
    chat.act(chat.answers.last, "Another answer")
    expect(chat.answers.last.get_by_text("2/2")).to_be_visible()
    chat.wait_for_end()
    expect(chat.answer.locator("code[data-coloured]")).to_be_attached()
    assert_fits(chat.page)
    assert problems(chat.page) == []
    chat.act(chat.questions.last, "Edit message")
    assert problems(chat.page) == []
    chat.page.keyboard.press("Escape")
    chat.page.get_by_role("button", name="Chats", exact=True).click()
    expect(chat.page.get_by_role("dialog", name="Chats")).to_be_visible()
    chat.chats.first.get_by_role("button").click()
    assert problems(chat.page) == []
    chat.page.get_by_role("menuitem", name="Delete").click()
    assert problems(chat.page) == []


def test_a_screen_reader_hears_the_answer_and_its_end(open_page, person: Person) -> None:
    chat = open_page(person)
    said = chat.page.locator("#live p")
    chat.send("Say [[itl=10 ttft=10 text=One whole paragraph.\n\nAnother one.]]")
    chat.wait_for_end()
    expect(said).to_have_text(["Message sent", "One whole paragraph.", "Another one.", "Answer complete"])
    assert chat.page.locator("#live").get_attribute("aria-live") == "polite"
    expect(chat.composer).to_be_focused()
    chat.send("Count [[n=400 itl=20]]")
    chat.wait_for_text("t00002")
    chat.page.keyboard.press("Tab")
    chat.page.keyboard.press("Tab")
    expect(chat.stop_button).to_be_focused()
    chat.page.keyboard.press("Enter")
    expect(said.last).to_have_text("Answer stopped")
    expect(chat.composer).to_be_focused()


def test_the_drawer_of_a_phone_with_the_keyboard(open_page, person: Person) -> None:
    chat = open_page(person, **PHONE)
    page = chat.page
    opener = page.get_by_role("button", name="Chats", exact=True)
    opener.focus()
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog", name="Chats")
    expect(drawer).to_be_visible()
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.matches('#sidebar *, body')")
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(opener).to_be_focused()


def test_the_menu_of_a_chat_with_the_keyboard(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.send("Hello")
    chat.wait_for_end()
    expect(chat.chats).to_have_count(1)
    chat.page.keyboard.press("Control+k")
    chat.page.keyboard.press("Tab")
    chat.page.keyboard.press("Tab")
    button = chat.page.get_by_role("button", name="Options of Hello")
    expect(button).to_be_focused()
    chat.page.keyboard.press("Enter")
    expect(chat.page.get_by_role("menuitem", name="Rename")).to_be_focused()
    chat.page.keyboard.press("ArrowDown")
    chat.page.keyboard.press("ArrowDown")
    expect(chat.page.get_by_role("menuitem", name="Delete")).to_be_focused()
    chat.page.keyboard.press("Escape")
    expect(button).to_be_focused()
    chat.page.keyboard.press("Enter")
    chat.page.keyboard.press("Enter")
    title = chat.page.get_by_label("Title")
    expect(title).to_be_focused()
    title.press("Control+a")
    title.press_sequentially("Renamed")
    title.press("Enter")
    expect(chat.chats.first).to_contain_text("Renamed")


def test_logging_out_is_said_in_other_tabs_at_once(open_page, person: Person) -> None:
    stays = open_page(person)
    leaves = open_page(person, "/accounts/logout/", web=1, context=stays.page.context)
    leaves.page.get_by_role("button", name="Log out").click()
    expect(stays.page.get_by_text("You are logged out.")).to_be_visible()
    expect(stays.page.get_by_role("link", name="Log in")).to_be_visible()
