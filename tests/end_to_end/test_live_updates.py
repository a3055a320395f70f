"""What other pages of a person are told while it happens, over two web processes (cases 5 and 23)."""

import json
import uuid
from time import monotonic
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from conversations import naming, sockets
from conversations.models import Conversation
from inference.protocol import News
from tests.end_to_end.test_websocket import hear, open_socket, say, text_of
from tests.people import Person, login, numbers
from tests.site import Site


def open_news(site: Site, headers: dict[str, str], web: int = 0, origin: str | None = None) -> ClientConnection:
    url = f"{site.webs[web].ws_url}/ws/user"
    return connect(url, additional_headers=headers, origin=origin, max_size=None, proxy=None)  # type: ignore[arg-type]


def hear_change(socket: ClientConnection, *changes: str) -> dict[str, Any]:
    """The first news of one of these kinds."""
    while True:
        frame: dict[str, Any] = json.loads(socket.recv(timeout=10))
        if frame["event"] == "chats" and frame["change"] in changes:
            return frame


def test_every_change_of_a_chat_is_told_to_ones_other_pages(site: Site, person: Person) -> None:
    with open_news(site, person.headers, web=1) as page, person.http(site.webs[0].url) as http:
        chat = http.post("/api/v1/conversations", json={"model": "echo"}).json()["id"]
        assert hear_change(page, "created")["conversation"] == chat
        sent = http.post(f"/api/v1/conversations/{chat}/messages", json={"content": "Hello [[n=3 itl=1]]"}).json()
        begun = hear_change(page, "answering")
        assert (begun["title"], begun["generation"]) == ("Hello [[n=3 itl=1]]", sent["generation"]["id"])
        assert hear_change(page, "answered")["generation"] == sent["generation"]["id"]
        http.patch(f"/api/v1/conversations/{chat}", json={"title": "Renamed"})
        assert hear_change(page, "titled")["title"] == "Renamed"
        http.patch(f"/api/v1/conversations/{chat}", json={"is_archived": True})
        hear_change(page, "updated")
        http.delete(f"/api/v1/conversations/{chat}")
        assert hear_change(page, "deleted")["conversation"] == chat


def test_a_title_from_the_side_worker_arrives(site: Site, person: Person) -> None:
    chat = person.chat()
    with open_socket(site, chat, person.headers, web=1) as page, person.http(site.webs[0].url) as http:
        http.post(f"/api/v1/conversations/{chat}/messages", json={"content": "Hello"})
        hear_change(page, "answered")
        assert naming.ask_for_title(chat)  # as the side worker does
        assert hear_change(page, "titled")["title"] == Conversation.objects.get(pk=chat).title != "Hello"


def test_a_second_tab_follows_what_the_first_one_begins(site: Site, person: Person) -> None:
    chat = person.chat()
    with (
        open_socket(site, chat, person.headers) as first,
        open_socket(site, chat, person.headers, web=1) as second,
    ):
        for turn in range(2):
            say(first, type="send", content="[[n=40 itl=5 emoji=1]]")
            had, seen = hear(first, "done"), hear(second, "done")
            assert had[0]["event"] == "accepted", turn
            assert text_of(seen) == text_of(had) and numbers(text_of(seen)) == list(range(40))


def test_the_tab_that_asks_gets_its_answer_once(site: Site, person: Person) -> None:
    with open_socket(site, person.chat(), person.headers) as socket:
        say(socket, type="send", content="[[n=1 ttft=1]]")
        hear(socket, "done")
        say(socket, type="cancel")  # nothing runs: no answer
        say(socket, type="dance")
        assert [frame["event"] for frame in hear(socket, "error")] == ["error"]


def test_a_tab_of_another_chat_hears_of_it_but_not_its_text(site: Site, person: Person) -> None:
    chat = person.chat()
    with (
        open_socket(site, person.chat(), person.headers, web=1) as page,
        person.http(site.webs[0].url) as http,
    ):
        http.post(f"/api/v1/conversations/{chat}/messages", json={"content": "[[n=5 itl=1]]"})
        hear_change(page, "answered")
        say(page, type="dance")
        assert [frame["event"] for frame in hear(page, "error")] == ["error"]


def test_strangers_hear_nothing(site: Site, person: Person, stranger: Person) -> None:
    with open_news(site, stranger.headers, web=1) as page, stranger.http(site.webs[0].url) as own:
        with person.http(site.webs[0].url) as http:
            chat = http.post("/api/v1/conversations", json={"model": "echo"}).json()["id"]
            http.post(f"/api/v1/conversations/{chat}/messages", json={"content": "[[n=1 itl=1]]"})
        mine = own.post("/api/v1/conversations", json={"model": "echo"}).json()["id"]
        assert json.loads(page.recv(timeout=10))["conversation"] == mine


def test_who_may_connect(site: Site, person: Person) -> None:
    ours = site.webs[0].url
    with open_news(site, person.cookie, origin=ours):
        pass
    for headers, origin, status in (({}, None, 401), (person.cookie, "https://evil.example", 403)):
        with pytest.raises(InvalidStatus) as rejected:
            open_news(site, headers, origin=origin)
        assert rejected.value.response.status_code == status


def test_pages_that_leave_leave_nothing(site: Site, person: Person) -> None:
    """Opening and closing does not keep the others from hearing."""
    with open_news(site, person.headers) as stays:
        for _ in range(10):
            with open_news(site, person.headers):
                pass
        with person.http(site.webs[1].url) as http:
            chat = http.post("/api/v1/conversations", json={"model": "echo", "id": str(uuid.uuid4())}).json()["id"]
        assert hear_change(stays, "created")["conversation"] == chat


def test_what_happens_right_after_the_handshake_is_heard(site: Site, person: Person) -> None:
    with person.http(site.webs[0].url) as http:
        for _ in range(20):
            with open_news(site, person.headers, web=1) as page:
                chat = http.post("/api/v1/conversations", json={"model": "echo"}).json()["id"]
                assert hear_change(page, "created")["conversation"] == chat


def test_logging_out_closes_the_sockets_of_that_session(site: Site, person: Person) -> None:
    """At once, at any web process; another session, and API keys, stay."""
    other = login(person.user)
    ours = site.webs[0].url
    with (
        open_news(site, person.cookie, web=1, origin=site.webs[1].url) as page,
        open_socket(site, person.chat(), person.cookie, web=1, origin=site.webs[1].url) as chat,
        open_news(site, {"Cookie": f"sessionid={other}"}, origin=ours) as elsewhere,
        open_news(site, person.headers) as program,
    ):
        with httpx.Client(base_url=ours, cookies={"sessionid": person.session}) as http:
            token = http.get("/accounts/logout/").cookies["csrftoken"]
            done = http.post("/accounts/logout/", data={"csrfmiddlewaretoken": token}, headers={"Referer": ours})
            assert done.status_code == 302
        for socket in (page, chat):
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    socket.recv(timeout=10)
            assert closed.value.rcvd and closed.value.rcvd.code == 4401
        with person.http(ours) as http:
            http.post("/api/v1/conversations", json={"model": "echo"})
        hear_change(elsewhere, "created")
        hear_change(program, "created")


async def test_a_socket_looks_for_itself_whether_it_may_still_tell(person: Person) -> None:
    consumer = sockets.UserConsumer()
    consumer.scope = {"type": "websocket", "headers": [(b"authorization", f"Bearer {person.key}".encode())]}
    consumer.session, consumer.checked_at = None, monotonic()
    news = News(person.user.pk, "chats")
    await sync_to_async(person.user.api_keys.update)(revoked_at=timezone.now())
    assert not await consumer._has_ended(news)  # asked a moment ago
    consumer.checked_at -= sockets.RECHECK_S
    assert await consumer._has_ended(news)
