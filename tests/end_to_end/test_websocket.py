"""The WebSocket: events, frames from the client, and who may connect."""

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from billing.models import Plan
from billing.operations import revoke_key
from inference.models import Generation
from tests.people import Person, numbers
from tests.site import Site, wait_until


def open_socket(
    site: Site, chat: uuid.UUID | str, headers: dict[str, str], web: int = 0, origin: str | None = None
) -> ClientConnection:
    return connect(
        f"{site.webs[web].ws_url}/ws/conversations/{chat}",
        additional_headers=headers,
        origin=origin,  # type: ignore[arg-type]
        max_size=None,
        proxy=None,
    )


def say(socket: ClientConnection, **frame: Any) -> None:
    socket.send(json.dumps(frame))


def hear(socket: ClientConnection, *kinds: str) -> list[dict[str, Any]]:
    """Frames up to and with the first of one of these kinds, without the news of the person's chats."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["event"] not in kinds:
        frame = json.loads(socket.recv(timeout=10))
        if frame["event"] != "chats":
            found.append(frame)
    return found


def text_of(frames: list[dict[str, Any]], text: str = "") -> str:
    for frame in frames:
        if frame["event"] == "snapshot":
            text = frame["text"]
        elif frame["event"] == "delta":
            text += frame["text"]
    return text


def refused(site: Site, chat: uuid.UUID | str, headers: dict[str, str], origin: str | None = None) -> int:
    """The status with which a handshake is rejected."""
    with pytest.raises(InvalidStatus) as rejected:
        open_socket(site, chat, headers, origin=origin)
    return rejected.value.response.status_code


def test_send_and_follow(site: Site, person: Person) -> None:
    chat, message = person.chat(), str(uuid.uuid4())
    with open_socket(site, chat, person.headers) as socket:
        for _ in range(2):  # the second is a repeat
            say(socket, type="send", content="[[n=20 itl=5 emoji=1]]", id=message, temperature=0.5)
            accepted, *frames = hear(socket, "done")
            assert accepted["event"] == "accepted"
            assert accepted["user_message"]["id"] == message
            assert {frame["generation"] for frame in frames} == {accepted["generation"]}
            assert numbers(text_of(frames)) == list(range(20))
    assert person.newest().sampling == {"temperature": 0.5}
    assert Generation.objects.filter(user=person.user).count() == 1


def test_regenerate_and_edit(site: Site, person: Person) -> None:
    with open_socket(site, person.chat(), person.headers) as socket:
        say(socket, type="send", content="[[n=2 itl=1]]")
        question = hear(socket, "done")[0]["user_message"]["id"]
        say(socket, type="regenerate", message=question)
        again = hear(socket, "done")
        assert again[0]["user_message"]["id"] == question and numbers(text_of(again)) == [0, 1]
        say(socket, type="edit", message=question, content="[[n=3 itl=1]]")
        edited = hear(socket, "done")
        assert edited[0]["user_message"]["id"] != question and numbers(text_of(edited)) == [0, 1, 2]


def test_second_tab_sees_the_running_answer_and_can_stop_it(site: Site, person: Person) -> None:
    """Cases 5 and 9: the tabs are at different web processes."""
    chat = person.chat()
    with open_socket(site, chat, person.headers) as first:
        say(first, type="send", content="[[n=10000 itl=10 emoji=1]]")
        had = hear(first, "delta")
        with open_socket(site, chat, person.headers, web=1) as second:
            seen = hear(second, "snapshot", "delta")
            say(second, type="cancel")
            seen += hear(second, "done")
        had += hear(first, "done")
    assert seen[-1]["finish_reason"] == had[-1]["finish_reason"] == "cancelled"
    assert text_of(seen) == text_of(had)
    assert numbers(text_of(had)) == list(range(len(numbers(text_of(had)))))
    person.wait_for_status("CANCELLED", timeout_s=1.0)


def test_cancel_before_the_first_token(site: Site, person: Person) -> None:
    """Case 8."""
    chat = person.chat()
    with open_socket(site, chat, person.headers) as socket:
        say(socket, type="send", content="[[n=5 ttft=60000]]")
        generation = hear(socket, "accepted")[0]["generation"]
        say(socket, type="cancel", generation=generation)
        assert hear(socket, "done")[-1]["finish_reason"] == "cancelled"
        say(socket, type="send", content="[[n=2 itl=1]]")
        assert numbers(text_of(hear(socket, "done"))) == [0, 1]
    messages = person.http(site.webs[1].url).get(f"/api/v1/conversations/{chat}/messages").json()["items"]
    assert [message["finish_reason"] for message in messages] == [None, "cancelled", None, "stop"]


@pytest.mark.parametrize("how", ["query", "frame"])
@pytest.mark.parametrize("cut", [1, 3])
def test_resume_after_a_cut_has_no_gap_and_no_repeat(site: Site, person: Person, cut: int, how: str) -> None:
    chat = person.chat()
    had: list[dict[str, Any]] = []
    with open_socket(site, chat, person.headers) as socket:
        say(socket, type="send", content="[[n=60 itl=15 emoji=1]]")
        for _ in range(cut):
            had += hear(socket, "delta")
    last = had[-1]
    position = {"generation": last["generation"], "last_seq_id": last["seq"]}
    query = "?" + urlencode(position) if how == "query" else ""
    with open_socket(site, f"{chat}{query}", person.headers, web=1) as socket:
        if not query:  # the socket follows already, from the start: a snapshot replaces what the reader had
            say(socket, type="resume", **position)
        frames = hear(socket, "done")
    assert bool(query) != ("snapshot" in {frame["event"] for frame in frames})
    text = text_of(frames, text_of(had))
    assert numbers(text) == list(range(60)) and text.count("😀") == 60


def test_resume_at_every_position_of_an_ended_answer(site: Site, person: Person) -> None:
    with open_socket(site, person.chat(), person.headers) as socket:
        say(socket, type="send", content="[[n=30 itl=15 emoji=1]]")
        frames = hear(socket, "done")
        text, prefix = text_of(frames), ""
        for frame in frames:
            if frame["event"] == "delta":
                prefix += frame["text"]
                say(socket, type="resume", last_seq_id=frame["seq"])
                assert text_of(hear(socket, "done"), prefix) == text


BAD_FRAMES = [
    "",
    "{",
    "[]",
    "null",
    "[" * 50_000,
    json.dumps({"type": "dance"}),
    json.dumps({"type": ["send"]}),
    json.dumps({"type": "send"}),
    json.dumps({"type": "send", "content": "a\0b"}),
    json.dumps({"type": "send", "content": "a\ud800b"}),
    json.dumps({"type": "send", "content": "x", "temperature": 7}),
    json.dumps({"type": "send", "content": "x", "parent": str(uuid.uuid4())}),
    json.dumps({"type": "cancel", "generation": str(uuid.uuid4())}),
    json.dumps({"type": "resume", "generation": "x"}),
    json.dumps({"type": "resume"}),
    json.dumps({"type": "regenerate", "message": str(uuid.uuid4())}),
    json.dumps({"type": "send", "content": "x" * 2_100_000}),
]


def test_bad_frames_are_answered_and_do_no_harm(site: Site, person: Person) -> None:
    """Cases 25 and 48."""
    with open_socket(site, person.chat(), person.headers) as socket:
        for frame in [*BAD_FRAMES, b"\x00\xff"]:
            socket.send(frame)
            (answer,) = hear(socket, "error", "done")
            assert answer["event"] == "error" and answer["code"] and answer["message"], frame
            assert "generation" not in answer
        say(socket, type="send", content="[[n=1 itl=1]]")
        assert numbers(text_of(hear(socket, "done"))) == [0]


def test_who_may_connect(site: Site, person: Person, stranger: Person) -> None:
    """Cases 6 and 7; a browser's cookies only with the site's own Origin."""
    chat = person.chat()
    assert refused(site, chat, stranger.headers) == 404
    assert refused(site, uuid.uuid4(), person.headers) == 404
    assert refused(site, "nonsense", person.headers) == 404
    assert refused(site, chat, {}) == 401
    assert refused(site, chat, {"Authorization": "Bearer sk-chat-wrong"}) == 401
    assert refused(site, chat, person.cookie) == 403
    assert refused(site, chat, person.cookie, origin="https://evil.example") == 403
    assert refused(site, chat, stranger.cookie, origin=site.webs[0].url) == 404
    with open_socket(site, chat, person.cookie, origin=site.webs[0].url) as socket:
        say(socket, type="send", content="[[n=1 itl=1]]")
        hear(socket, "done")


def test_stranger_reaches_nothing_through_their_own_socket(site: Site, person: Person, stranger: Person) -> None:
    chat = person.chat()
    with open_socket(site, chat, person.headers) as mine:
        say(mine, type="send", content="[[n=3 ttft=60000]]")
        accepted = hear(mine, "accepted")[0]
        with open_socket(site, stranger.chat(), stranger.headers) as theirs:
            for frame in (
                {"type": "resume", "generation": accepted["generation"]},
                {"type": "cancel", "generation": accepted["generation"]},
                {"type": "regenerate", "message": accepted["user_message"]["id"]},
                {"type": "edit", "message": accepted["user_message"]["id"], "content": "x"},
                {"type": "send", "content": "x", "parent": accepted["assistant_message"]["id"]},
            ):
                say(theirs, **frame)
                assert hear(theirs, "error", "accepted")[-1]["code"] == "not_found", frame
        assert person.newest().is_open and not person.newest().cancel_requested
        say(mine, type="cancel")
        hear(mine, "done")


def test_revoked_key_ends_what_a_socket_may_do(site: Site, person: Person) -> None:
    with open_socket(site, person.chat(), person.headers) as socket:
        revoke_key(user=person.user, key_id=person.user.api_keys.get().pk)
        say(socket, type="send", content="x")
        assert hear(socket, "error")[-1]["code"] == "invalid_api_key"


def test_disconnect_does_not_cancel(site: Site, person: Person) -> None:
    chat = person.chat()
    with open_socket(site, chat, person.headers) as socket:
        say(socket, type="send", content="[[n=40 itl=10]]")
        hear(socket, "delta")
    wait_until(lambda: not person.newest().is_open, "it ends")
    assert person.newest().finish_reason == "stop"


def test_of_a_burst_into_one_chat_one_is_written_and_the_others_are_told_why(site: Site, person: Person) -> None:
    """Not that there are too many requests, which would be sent again: the chat is busy (case 23)."""
    chat = person.chat()
    Plan.objects.filter(is_default=True).update(max_concurrent=2)
    try:

        def send(number: int) -> int:
            http = person.http(site.webs[number % 2].url)
            content = {"content": f"[[n=100 itl=50]] {number}"}
            return http.post(f"/api/v1/conversations/{chat}/messages", json=content).status_code

        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(send, range(8)))
        late = person.http(site.webs[0].url).post(f"/api/v1/conversations/{chat}/messages", json={"content": "x"})
        person.http(site.webs[0].url).post(f"/api/v1/conversations/{chat}/cancel")
    finally:
        Plan.objects.filter(is_default=True).update(max_concurrent=50)
    assert sorted(statuses)[:1] == [202] and statuses.count(202) == 1
    assert set(statuses) <= {202, 409, 429} and statuses.count(409) >= 4
    assert (late.status_code, late.json()["error"]["code"]) == (409, "answer_running")
