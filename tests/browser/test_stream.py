"""The same text going on, whatever happens to the page or the connection (case 5)."""

import re
import signal

from playwright.sync_api import expect

from inference.models import Generation
from tests.browser.pages import ChatPage
from tests.people import Person, numbers
from tests.site import Site, wait_until

LONG = "Count [[n=120 itl=25 ttft=50]]"
ALL = list(range(120))


def is_whole(chat: ChatPage) -> bool:
    return numbers(chat.text()) == ALL


def test_a_reload_in_mid_answer_goes_on(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.send(LONG)
    chat.wait_for_text("t00020")
    chat.page.reload()
    chat.wait_for_text("t00030")
    chat.page.reload()
    chat.wait_for_end()
    assert is_whole(chat)
    chat.page.reload()
    assert is_whole(chat)  # now as the server renders it


def test_a_second_tab_at_another_web_process_has_the_same_text(open_page, person: Person) -> None:
    one = open_page(person)
    one.send(LONG)
    one.wait_for_text("t00010")
    two = open_page(person, one.path, web=1, context=one.page.context)
    two.wait_for_text("t00020")
    for chat in (one, two):
        chat.wait_for_end()
        assert is_whole(chat)


def test_leaving_and_coming_back_in_mid_answer_goes_on(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.send(LONG)
    chat.wait_for_text("t00010")
    chat.page.get_by_role("link", name="New chat").first.click()
    expect(chat.page.get_by_text("What can I help with?")).to_be_visible()
    chat.page.go_back()
    chat.wait_for_text("t00040")
    chat.go("/accounts/logout/")  # a page of its own
    chat.page.go_back()
    chat.wait_for_end()
    assert is_whole(chat)


def test_a_lost_server_is_said_and_made_up_for(open_page, person: Person, site: Site) -> None:
    chat = open_page(person, web=1)
    chat.send("Count [[n=250 itl=25 ttft=50]]")
    chat.wait_for_text("t00020")
    chat.page.evaluate("document.querySelector('.answer p').kept = true")
    site.kill(site.webs[1], signal.SIGKILL)
    expect(chat.page.get_by_text("Connection lost. Trying again…")).to_be_visible()
    chat.composer.fill("typed meanwhile")
    site.restart(site.webs[1])
    expect(chat.page.locator("[data-connection]")).to_be_hidden()
    chat.wait_for_end()
    assert numbers(chat.text()) == list(range(250))
    assert chat.page.evaluate("document.querySelector('.answer p').kept")  # the text stayed where it was
    expect(chat.composer).to_have_value("typed meanwhile")


def test_offline_is_said_and_what_is_typed_kept(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.send("Hello")
    chat.wait_for_end()
    chat.page.context.set_offline(True)
    expect(chat.page.get_by_text("You are offline. What you type is kept.")).to_be_visible()
    chat.send("Not on its way")
    expect(chat.error).to_contain_text("could not be sent")
    expect(chat.composer).to_have_value("Not on its way")
    expect(chat.questions).to_have_count(1)
    chat.page.context.set_offline(False)
    expect(chat.page.locator("[data-connection]")).to_be_hidden()
    chat.error.get_by_role("button", name="Try again").click()
    chat.wait_for_text("You said: Not on its way")
    chat.wait_for_end()
    expect(chat.questions).to_have_count(2)


def test_an_answer_that_fails_says_so_and_can_be_asked_for_again(open_page, person: Person) -> None:
    chat = open_page(person)
    chat.send("Break [[n=30 itl=5 fail=10 always=1]]")
    expect(chat.answers.last).to_contain_text("The answer broke off.")
    assert numbers(chat.text()) == list(range(10))
    expect(chat.answers.last.get_by_role("button", name="Continue")).to_be_visible()
    chat.answers.last.get_by_role("button", name="Try again").click()
    expect(chat.answers.last.get_by_text("2/2")).to_be_visible()
    assert Generation.objects.filter(user=person.user).count() == 2


def test_a_queue_is_told_and_left_by_stop(open_page, person: Person, stranger: Person, site: Site) -> None:
    with stranger.http(site.webs[0].url) as api:
        for _ in range(site.slots):
            body = {"content": "Hold [[n=400 itl=50]]"}
            api.post(f"/api/v1/conversations/{stranger.chat()}/messages", json=body).raise_for_status()
        running = Generation.objects.filter(user=stranger.user, status="RUNNING")
        wait_until(running.exists, "one of them runs")
        chat = open_page(person)
        chat.send("Wait for me")
        expect(chat.answers.last).to_contain_text(re.compile(r"Waiting for a free place · \w+ in line"))
        chat.stop_button.click()
        expect(chat.answers.last).to_contain_text("Stopped by you")
        person.wait_for_status("CANCELLED")
        for generation in Generation.objects.filter(user=stranger.user):
            api.post(f"/api/v1/conversations/{generation.affinity}/cancel").raise_for_status()
