"""Chromium in front of a real site: two web processes and one echo worker.

Needs Debian's chromium (or another one on PATH). Playwright's own browsers are not used: they are downloads.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.pages import ChatPage, Guard
from tests.people import Person, committed, db, person, stranger
from tests.site import REPOSITORY, Site, database_url_of_tests

__all__ = ["committed", "db", "person", "stranger"]

# Playwright's loop runs in the tests' thread; their queries are made between its steps, never inside.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 20_000  # for a machine that runs a model beside this
expect.set_options(timeout=PATIENCE_MS)

OpenPage = Callable[..., ChatPage]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser/" in item.nodeid:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium; without one the tests are skipped, but never in CI."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found:
        return found
    if os.environ.get("CI"):
        pytest.fail("Chromium is missing: apt-get install chromium")
    pytest.skip("Chromium is missing: apt-get install chromium")


@pytest.fixture(scope="session")
def frontend() -> None:
    """The bundle as the sources now are; quick when the libraries are installed already."""
    subprocess.run([str(REPOSITORY / "frontend" / "build.sh")], check=True)


@pytest.fixture(scope="package")
def site(chromium: str, frontend: None, committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(
        tmp_path_factory.mktemp("site"),
        database_url=database_url_of_tests(),
        redis_url=os.environ["REDIS_URL"],
        slots=8,
    ) as running:
        yield running


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def guard() -> Iterator[Guard]:
    """Fails the test when a page logged an error, threw, or broke the Content-Security-Policy."""
    watching = Guard()
    yield watching
    watching.check()


@pytest.fixture
def open_context(browser: Browser, site: Site) -> Iterator[Callable[..., BrowserContext]]:
    """A browser of someone who is logged in (None: of nobody)."""
    contexts: list[BrowserContext] = []

    def make(person: Person | None, **options: object) -> BrowserContext:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        if person:
            name, _, value = person.cookie["Cookie"].partition("=")
            context.add_cookies([{"name": name, "value": value, "url": site.webs[0].url}])
        return context

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def open_page(open_context: Callable[..., BrowserContext], site: Site, guard: Guard) -> OpenPage:
    """A page at one of the web processes; `context`: a second tab of that browser."""

    def make(
        person: Person | None,
        path: str = "/",
        *,
        web: int = 0,
        context: BrowserContext | None = None,
        **options: object,
    ) -> ChatPage:
        page: Page = (context or open_context(person, **options)).new_page()
        guard.watch(page)
        chat = ChatPage(page, site.webs[web].url)
        chat.go(path)
        return chat

    return make
