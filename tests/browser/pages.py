"""What a person does with the chat's pages, and what a test sees of them."""

import re
from dataclasses import dataclass, field

from playwright.sync_api import ConsoleMessage, Locator, Page, expect

# Failures that a test brings about on purpose, and Chromium's report of the 404s that it asks for.
EXPECTED = re.compile(r"Failed to load resource|WebSocket connection to|ERR_|^htmx:|Response Status Error Code")


@dataclass
class Guard:
    """Errors of the pages that it watches."""

    errors: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(f"{error.name}: {error.message}\n{error.stack}"))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not EXPECTED.search(message.text):
            self.errors.append(message.text)

    def check(self) -> None:
        assert self.errors == []


class ChatPage:
    """One tab."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

    def go(self, path: str) -> None:
        self.page.goto(self.url + path)

    # -- parts ------------------------------------------------------------------------------------

    @property
    def composer(self) -> Locator:
        return self.page.locator("#prompt")

    @property
    def stop_button(self) -> Locator:
        return self.page.locator("[data-stop]")

    @property
    def send_button(self) -> Locator:
        return self.page.locator("[data-send]")

    @property
    def questions(self) -> Locator:
        return self.page.locator(".turn.user")

    @property
    def answers(self) -> Locator:
        return self.page.locator(".turn.answer")

    @property
    def answer(self) -> Locator:
        """The last one's text."""
        return self.answers.last.locator("[data-text]")

    @property
    def chats(self) -> Locator:
        return self.page.locator("#chats .chat")

    @property
    def error(self) -> Locator:
        """What stands above the composer."""
        return self.page.locator(".dock [data-error]")

    @property
    def edit_box(self) -> Locator:
        return self.page.locator(".edit textarea")

    @property
    def path(self) -> str:
        return self.page.url.removeprefix(self.url)

    def text(self) -> str:
        """The last answer's, with a space at the end as the numbered tokens have it."""
        return self.answer.inner_text() + " "

    # -- acts -------------------------------------------------------------------------------------

    def send(self, text: str) -> None:
        self.composer.fill(text)
        expect(self.send_button).to_be_enabled()  # by the page's script, which then knows Enter as well
        self.composer.press("Enter")

    def wait_for_text(self, text: str) -> None:
        expect(self.answer).to_contain_text(text)

    def wait_for_end(self) -> None:
        """The answer has ended, and its actions are there."""
        expect(self.stop_button).to_be_hidden()
        expect(self.answers.last.get_by_role("button", name="Copy answer")).to_be_attached()

    def act(self, turn: Locator, name: str) -> None:
        turn.hover()
        turn.get_by_role("button", name=name).click()

    def menu(self, chat: Locator, name: str) -> None:
        """An entry of a chat's menu in the sidebar."""
        chat.hover()
        chat.get_by_role("button").click()
        self.page.get_by_role("menuitem", name=name).click()
