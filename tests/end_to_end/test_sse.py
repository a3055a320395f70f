"""The native stream as Server-Sent Events: resume from every kind of position, at another web process."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from inference.models import Generation
from tests.people import Person, numbers
from tests.site import Site, raw_request

EMOJI = "😀"


@dataclass(frozen=True)
class Received:
    id: str
    event: str
    data: dict[str, Any]


def events(response: httpx.Response) -> Iterator[Received]:
    """The events of a stream, by the rules of EventSource."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield Received(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}


def read(person: Person, url: str, chat: uuid.UUID, query: str = "", **headers: str) -> list[Received]:
    """A whole stream."""
    with person.http(url).stream("GET", f"/api/v1/conversations/{chat}/stream{query}", headers=headers) as response:
        assert response.status_code == 200, response.read()
        return list(events(response))


def text_of(found: list[Received], text: str = "") -> str:
    """What a reader who had `text` has after these events."""
    for event in found:
        if event.event == "snapshot":
            text = event.data["text"]
        elif event.event == "delta":
            text += event.data["text"]
    return text


def send(person: Person, url: str, chat: uuid.UUID, order: str) -> str:
    """Send a message; the generation's id."""
    sent = person.http(url).post(f"/api/v1/conversations/{chat}/messages", json={"content": f"[[{order}]]"})
    assert sent.status_code == 202, sent.text
    return str(sent.json()["generation"]["id"])


def test_stream_of_a_sent_message(site: Site, person: Person) -> None:
    chat = person.chat()
    generation = send(person, site.webs[0].url, chat, "n=30 itl=5")
    url = f"/api/v1/conversations/{chat}/stream"
    with person.http(site.webs[1].url).stream("GET", url) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "no-transform" in response.headers["cache-control"]
        assert response.headers["x-accel-buffering"] == "no"
        found = list(events(response))
    assert numbers(text_of(found)) == list(range(30))
    assert all(event.id == f"{generation}:{event.data['seq']}" for event in found)
    assert all(event.data["generation"] == generation and event.data["event"] == event.event for event in found)
    assert found[-1].event == "done"
    assert found[-1].data["finish_reason"] == "stop"
    usage = found[-1].data["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_send_and_stream_in_one_request(site: Site, person: Person) -> None:
    chat, message = person.chat(), str(uuid.uuid4())
    headers = {"Accept": "text/event-stream"}
    url = f"/api/v1/conversations/{chat}/messages"
    for _ in range(2):  # the second is a repeat: the same generation from its start
        request = {"content": "[[n=20 itl=2]]", "id": message}
        with person.http(site.webs[0].url).stream("POST", url, json=request, headers=headers) as response:
            assert response.status_code == 200, response.read()
            assert numbers(text_of(list(events(response)))) == list(range(20))
    assert Generation.objects.filter(user=person.user).count() == 1


def test_session_may_read_but_not_stream_a_post(site: Site, person: Person) -> None:
    chat = person.chat()
    send(person, site.webs[0].url, chat, "n=2 itl=1")
    base = f"{site.webs[0].url}/api/v1/conversations/{chat}"
    assert "event: done" in httpx.get(f"{base}/stream", headers=person.cookie).text
    foreign = httpx.get(f"{base}/stream", headers={**person.cookie, "Origin": "https://evil.example"})
    assert foreign.status_code == 403
    headers = {**person.cookie, "Accept": "text/event-stream"}
    assert httpx.post(f"{base}/messages", json={"content": "x"}, headers=headers).status_code == 401


def test_resume_from_every_position_at_another_web_process(site: Site, person: Person) -> None:
    """Case 1: emoji are split over tokens and frames."""
    chat = person.chat()
    generation = send(person, site.webs[0].url, chat, "n=60 itl=15 emoji=1")
    whole = read(person, site.webs[0].url, chat)
    text = text_of(whole)
    assert numbers(text) == list(range(60)) and text.count(EMOJI) == 60 and "\ufffd" not in text
    frames = max(event.data["seq"] for event in whole)
    prefixes = {0: ""}
    for event in whole:
        if event.event in ("delta", "snapshot"):
            prefixes[event.data["seq"]] = text_of([event], prefixes[max(prefixes)])
    assert len(prefixes) > 10
    for seq, prefix in prefixes.items():
        ways = [{"query": f"?generation={generation}&last_seq_id={seq}"}, {"Last-Event-ID": f"{generation}:{seq}"}]
        ways.append({"query": f"?last_seq_id={seq}"})
        rest = read(person, site.webs[1].url, chat, **ways[seq % 3])
        assert text_of(rest, prefix) == text, (seq, ways[seq % 3])
        assert rest[-1].event == "done" and rest[-1].data["seq"] == frames


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_resume_while_it_runs_has_no_gap_and_no_repeat(site: Site, person: Person, cut: int) -> None:
    chat = person.chat()
    send(person, site.webs[0].url, chat, "n=50 itl=15 emoji=1")
    text, last = "", ""
    with person.http(site.webs[0].url).stream("GET", f"/api/v1/conversations/{chat}/stream") as response:
        deltas = 0
        for event in events(response):
            text, last = text_of([event], text), event.id
            deltas += event.event == "delta"
            if deltas == cut:
                break
    assert person.newest().is_open  # a disconnect does not cancel
    rest = read(person, site.webs[1].url, chat, **{"Last-Event-ID": last})
    assert "snapshot" not in {event.event for event in rest}
    text = text_of(rest, text)
    assert numbers(text) == list(range(50)) and text.count(EMOJI) == 50
    assert person.newest().status == "FINISHED"


@pytest.mark.parametrize("seq", [0, 99999, 2**40])
def test_unknown_position_gets_the_whole_text(site: Site, person: Person, seq: int) -> None:
    chat = person.chat()
    generation = send(person, site.webs[0].url, chat, "n=5 itl=1")
    read(person, site.webs[0].url, chat)
    found = read(person, site.webs[1].url, chat, f"?generation={generation}&last_seq_id={seq}")
    assert numbers(text_of(found, "forgotten" if seq else "")) == list(range(5))
    assert found[-1].event == "done"


def test_purged_generation_is_answered_from_the_message(site: Site, person: Person) -> None:
    from inference.tasks import purge

    chat = person.chat()
    generation = send(person, site.webs[0].url, chat, "n=5 itl=1")
    frames = read(person, site.webs[0].url, chat)[-1].data["seq"]
    row = Generation.objects.filter(pk=generation)
    row.update(finished_at="2020-01-01T00:00:00Z", sampling={"stop": ["my own words"]})
    purge()
    assert row.values_list("prompt", "text", "sampling").get() == (b"", "", {})
    found = read(person, site.webs[1].url, chat)
    assert [event.event for event in found] == ["snapshot", "done"]
    assert numbers(text_of(found)) == list(range(5))
    at_the_end = read(person, site.webs[1].url, chat, f"?last_seq_id={frames}")
    assert [event.event for event in at_the_end] == ["done"]


def test_failure_is_an_error_event(site: Site, person: Person) -> None:
    chat = person.chat()
    send(person, site.webs[0].url, chat, "n=20 itl=2 fail=5 always=1")
    last = read(person, site.webs[0].url, chat)[-1]
    assert last.event == "error" and last.data["code"] and last.data["message"]


def test_nothing_to_stream_ends_an_event_source(site: Site, person: Person) -> None:
    url = f"/api/v1/conversations/{person.chat()}/stream"
    assert person.http(site.webs[0].url).get(url).status_code == 204


def test_silence_is_filled_with_comments(site: Site, person: Person) -> None:
    chat = person.chat()
    send(person, site.webs[0].url, chat, "n=1 ttft=60000")
    with person.http(site.webs[0].url).stream("GET", f"/api/v1/conversations/{chat}/stream") as response:
        lines = response.iter_lines()
        assert next(line for line in lines if line.startswith(":")) == ": ping"
    assert person.http(site.webs[1].url).post(f"/api/v1/conversations/{chat}/cancel").status_code == 200


@pytest.mark.parametrize("wrong", ["?last_seq_id=x", "?generation=x", "?generation=x&last_seq_id=1"])
def test_bad_position_is_400(site: Site, person: Person, wrong: str) -> None:
    url = f"/api/v1/conversations/{person.chat()}/stream{wrong}"
    response = person.http(site.webs[0].url).get(url)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_position")


def test_stranger_gets_404(site: Site, person: Person, stranger: Person) -> None:
    """Case 6: with the conversation's id, and with the generation's through a conversation of their own."""
    chat, own = person.chat(), stranger.chat()
    generation = send(person, site.webs[0].url, chat, "n=3 itl=1")
    send(stranger, site.webs[0].url, own, "n=3 itl=1")
    http = stranger.http(site.webs[0].url)
    assert http.get(f"/api/v1/conversations/{chat}/stream").status_code == 404
    assert http.get(f"/api/v1/conversations/{own}/stream?generation={generation}").status_code == 404
    last = {"Last-Event-ID": f"{generation}:1"}
    assert http.get(f"/api/v1/conversations/{own}/stream", headers=last).status_code == 404
    stream = {"Accept": "text/event-stream"}
    posted = http.post(f"/api/v1/conversations/{chat}/messages", json={"content": "x"}, headers=stream)
    assert posted.status_code == 404
    assert httpx.get(f"{site.webs[0].url}/api/v1/conversations/{chat}/stream").status_code == 401


def test_bad_message_is_refused_before_the_stream(site: Site, person: Person) -> None:
    http, headers = person.http(site.webs[0].url), {"Accept": "text/event-stream"}
    url = f"/api/v1/conversations/{person.chat()}/messages"
    for content in (b"[]", b"{", b'{"content": "a\\u0000b"}', b'{"content": "a\\ud800b"}', b'{"content": 5}'):
        response = http.post(url, content=content, headers=headers)
        assert response.status_code == 400, content
    assert http.post(url, content=b" " * 2_000_001, headers=headers).status_code == 413


def test_cut_connections_leave_no_reader(site: Site, person: Person) -> None:
    """Case 12: the generation goes on, and the next reader gets all of it."""
    chat = person.chat()
    send(person, site.webs[0].url, chat, "n=40 itl=20")
    request = f"GET /api/v1/conversations/{chat}/stream HTTP/1.1\r\nHost: localhost\r\n"
    request += f"Authorization: Bearer {person.key}\r\n\r\n"
    for _ in range(20):
        raw_request(site.webs[0].port, request.encode()).close()
    assert numbers(text_of(read(person, site.webs[0].url, chat))) == list(range(40))
