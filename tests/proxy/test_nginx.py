"""Streams through two real nginx hops (cases 3 and 4)."""

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI
from websockets.sync.client import connect

from tests.end_to_end.calls import body
from tests.end_to_end.test_sse import events, send, text_of
from tests.end_to_end.test_websocket import hear, say
from tests.people import Person, numbers
from tests.proxy.conftest import IDLE_S
from tests.site import Site

SILENT_MS = 2500 * IDLE_S


def client_of(person: Person, url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=person.key, max_retries=0)


def first_words(chunks: Any) -> list[int]:
    """Numbered tokens as they arrive, until there are five. A proxy that gathers frames would never give them."""
    text = ""
    while len(numbers(text)) < 5:
        text += next(chunks).choices[0].delta.content or ""
    return numbers(text)


def test_frames_of_the_native_stream_arrive_while_the_answer_stands_still(site: Site, url: str, person: Person) -> None:
    """Case 3."""
    chat = person.chat()
    send(person, url, chat, "n=20 itl=50 stall=5")
    with person.http(url).stream("GET", f"/api/v1/conversations/{chat}/stream") as response:
        found: list[Any] = []
        for event in events(response):
            found.append(event)
            if len(numbers(text_of(found))) == 5:
                break
        assert person.newest().is_open
    assert person.http(url).post(f"/api/v1/conversations/{chat}/cancel").status_code == 200


def test_frames_of_v1_arrive_while_the_answer_stands_still_and_leaving_cancels(
    site: Site, url: str, person: Person
) -> None:
    """Case 3; the hang-up passes both hops."""
    stream = client_of(person, url).chat.completions.create(
        model="echo", messages=body("n=20 itl=50 stall=5")["messages"], stream=True
    )
    assert first_words(iter(stream)) == [0, 1, 2, 3, 4]
    assert person.newest().is_open
    stream.close()
    person.wait_for_status("CANCELLED")


def test_websocket(site: Site, url: str, person: Person) -> None:
    chat = person.chat()
    address = f"{url.replace('http', 'ws')}/ws/conversations/{chat}"
    with connect(address, additional_headers=person.cookie, origin=url, proxy=None) as socket:  # type: ignore[arg-type]
        say(socket, type="send", content=f"[[n=3 itl=1 ttft={SILENT_MS}]]")  # pings fill the silence
        frames = hear(socket, "done")
    text = "".join(frame["text"] for frame in frames if frame["event"] in ("delta", "snapshot"))
    assert numbers(text) == [0, 1, 2]


def test_silence_before_the_first_token_on_the_native_stream(site: Site, url: str, person: Person) -> None:
    """Case 4."""
    chat = person.chat()
    send(person, url, chat, f"n=3 itl=1 ttft={SILENT_MS}")
    with person.http(url).stream("GET", f"/api/v1/conversations/{chat}/stream") as response:
        lines = list(response.iter_lines())
    assert lines.count(": ping") > IDLE_S
    assert json.loads(next(line for line in lines if '"done"' in line)[6:])["finish_reason"] == "stop"


@pytest.mark.parametrize("has_key", [True, False])
def test_silence_before_the_first_token_with_the_official_client(
    site: Site, url: str, person: Person, has_key: bool
) -> None:
    """Case 4."""
    headers = {"Idempotency-Key": "one"} if has_key else {}
    stream = client_of(person, url).chat.completions.create(
        model="echo",
        messages=body(f"n=3 itl=1 ttft={SILENT_MS}")["messages"],
        stream=True,
        extra_headers=headers,
    )
    assert numbers("".join(chunk.choices[0].delta.content or "" for chunk in stream)) == [0, 1, 2]


def test_what_is_too_large_is_said_by_the_site(site: Site, url: str, person: Person) -> None:
    request = body("n=1", user="x" * 2_100_000)
    answer = person.http(url).post("/v1/chat/completions", json=request)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_a_web_process_that_is_gone_is_passed_over(site: Site, url: str, person: Person) -> None:
    site.kill(site.webs[0])
    try:
        with httpx.Client(base_url=url, headers=person.headers) as http:
            assert [http.get("/api/v1/conversations").status_code for _ in range(6)] == [200] * 6
            new = [http.post("/api/v1/conversations", json={"model": "echo"}).status_code for _ in range(6)]
            assert new == [201] * 6
    finally:
        site.restart(site.webs[0])
