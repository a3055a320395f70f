"""Web processes that stop: nothing that was promised is lost, and nobody gets an error."""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import uuid
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

import httpx
import pytest
from openai import APIError, OpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from billing.models import PlanWindow
from chatsite.stores import free_port
from inference.models import Generation
from tests.end_to_end.calls import body, chunks, text_of
from tests.people import Person, make_person, numbers
from tests.site import Process, Site, Web, wait_until

pytestmark = pytest.mark.faults

STREAMS = 200
LIMITS = httpx.Limits(max_connections=1000)
ITL_MS = 250
TOKENS, CALL_TOKENS = 80, 24  # 20 s, longer than both restarts, which wait for calls: 6 s


@dataclass
class Held:
    """What a client holds of its answer."""

    text: str = ""
    last_id: str = ""
    end: dict[str, object] = field(default_factory=dict)
    connections: int = 0
    closes: list[int] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, event: dict[str, object]) -> None:
        self.begun.set()
        if event["event"] == "snapshot":
            self.text = str(event["text"])
        elif event["event"] == "delta":
            self.text += str(event["text"])
        elif event["event"] in ("done", "error"):
            self.end = event


async def read_sse(http: httpx.AsyncClient, chat: uuid.UUID, held: Held) -> None:
    """As an EventSource: it reconnects when the stream ends, after the time that the server names."""
    while not held.end:
        headers = {"Last-Event-ID": held.last_id} if held.last_id else {}
        retry_s = 1.0
        held.connections += 1
        async with http.stream("GET", f"/api/v1/conversations/{chat}/stream", headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    held.last_id = line[4:]
                elif line.startswith("retry: "):
                    retry_s = int(line[7:]) / 1000
                elif line.startswith("data: "):
                    held.take(json.loads(line[6:]))
        await asyncio.sleep(0 if held.end else retry_s)


async def read_socket(web: Web, person: Person, chat: uuid.UUID, held: Held) -> None:
    """As the page: it reconnects when the socket closes, naming what it has."""
    position = ""
    while not held.end:
        held.connections += 1
        url = f"{web.ws_url}/ws/conversations/{chat}{position}"
        try:
            async with connect(url, additional_headers=person.headers, proxy=None, open_timeout=30) as socket:
                async for message in socket:
                    event = json.loads(message)
                    if event["event"] == "chats":
                        continue
                    held.take(event)
                    position = f"?generation={event['generation']}&last_seq_id={event['seq']}"
                    if held.end:
                        break
        except ConnectionClosed as closed:
            held.closes.append(closed.rcvd.code if closed.rcvd else 1006)
        if not held.end:
            await asyncio.sleep(0.2)


async def read_call(http: httpx.AsyncClient, held: Held) -> None:
    """A /v1 stream, which cannot resume."""
    request = body(f"n={CALL_TOKENS} itl={ITL_MS} emoji=1", stream=True)
    async with http.stream("POST", "/v1/chat/completions", json=request) as response:
        assert response.status_code == 200, await response.aread()
        held.begun.set()
        lines = [line async for line in response.aiter_lines()]
    held.text = text_of(chunks(lines))
    held.end = {"is_done": "data: [DONE]" in lines}


async def ask_pages(url: str, person: Person, statuses: list[int]) -> None:
    """Plain requests, all the time, over connections that are kept and over new ones."""
    async with httpx.AsyncClient(base_url=url, headers=person.headers, timeout=30) as kept:
        while True:
            statuses.append((await kept.get("/api/v1/conversations")).status_code)
            async with httpx.AsyncClient(base_url=url, timeout=30) as new:
                statuses.append((await new.get("/healthz")).status_code)
            await asyncio.sleep(0.05)


async def restart_once_begun(site: Site, answers: list[Held]) -> None:
    """As `manage.py restart_web` does."""
    for held in answers:
        await held.begun.wait()
    for web in site.webs:
        os.kill(web.pid, signal.SIGTERM)
        await asyncio.to_thread(web.popen.wait, 60)
        assert web.popen.returncode == -signal.SIGTERM  # uvicorn repeats the signal once it is done
        await asyncio.to_thread(site.restart, web)


@pytest.mark.timeout(240)
def test_a_rolling_restart_under_200_streams_loses_nothing_and_fails_nothing(make_site, db):
    PlanWindow.objects.all().delete()
    people = [make_person() for _ in range(STREAMS // 20)]
    readers = [(person, person.chat()) for person in people for _ in range(14)]
    environment = {"WEB_DRAIN": "30", "DATABASE_POOL": "8"}
    site = make_site(webs=2, workers=1, slots=STREAMS, environment=environment, shares_port=True)
    url, statuses = site.webs[0].url, []
    by_sse, by_socket, by_call = ([Held() for _ in range(count)] for count in (70, 70, 60))

    async def run() -> None:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    httpx.AsyncClient(base_url=url, headers=person.headers, timeout=60, limits=LIMITS)
                )
                for person in people
            ]
            of = dict(zip([person.key for person in people], clients, strict=True))
            for person, chat in readers:
                content = {"content": f"[[n={TOKENS} itl={ITL_MS} emoji=1]]"}
                sent = await of[person.key].post(f"/api/v1/conversations/{chat}/messages", json=content)
                assert sent.status_code == 202, sent.text
            asking = asyncio.create_task(ask_pages(url, people[0], statuses))
            halves = (readers[::2], by_sse), (readers[1::2], by_socket)
            sse, sockets = (zip(half, answers, strict=True) for half, answers in halves)
            await asyncio.gather(
                restart_once_begun(site, [*by_sse, *by_socket, *by_call]),
                *(read_sse(of[person.key], chat, held) for (person, chat), held in sse),
                *(read_socket(site.webs[0], *reader, held) for reader, held in sockets),
                *map(read_call, clients * 6, by_call),
            )
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking

    asyncio.run(run())
    assert len(by_sse) + len(by_socket) + len(by_call) == STREAMS
    for group, tokens in ((by_sse, TOKENS), (by_socket, TOKENS), (by_call, CALL_TOKENS)):
        for held in group:
            assert numbers(held.text) == list(range(tokens)) and held.text.count("😀") == tokens
    assert all(held.end["finish_reason"] == "stop" for held in [*by_sse, *by_socket])
    assert all(held.end["is_done"] for held in by_call)
    assert max(held.connections for held in by_sse) > 1 and max(held.connections for held in by_socket) > 1
    assert {code for held in by_socket for code in held.closes} <= {1012}
    assert len(statuses) > 20 and set(statuses) == {200}
    assert set(Generation.objects.filter(user__in=[p.user.pk for p in people]).values_list("status", flat=True)) == {
        "FINISHED"
    }


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_call_that_outlasts_the_drain_ends_with_an_error_that_says_so(make_site, person, is_stream):
    site = make_site(webs=1, workers=1, environment={"WEB_DRAIN": "1"})
    (web,) = site.webs
    client = OpenAI(base_url=f"{web.url}/v1", api_key=person.key, max_retries=0)
    messages = body("n=10000 itl=20")["messages"]

    def ask():
        answer = client.chat.completions.create(model="echo", messages=messages, stream=is_stream)
        if is_stream:
            next(chunk for chunk in answer if chunk.choices[0].delta.content)
            os.kill(web.pid, signal.SIGTERM)
            list(answer)

    if not is_stream:

        def stop_once_it_runs():
            person.wait_for_status("RUNNING", 20)
            os.kill(web.pid, signal.SIGTERM)

        threading.Thread(target=stop_once_it_runs).start()
    with pytest.raises(APIError) as ended:
        ask()
    assert ended.value.code == "restarting"
    person.wait_for_status("CANCELLED")
    wait_until(lambda: not web.is_alive, "the process has left")


def test_a_stopping_process_is_not_ready_and_takes_no_new_connection(make_site, person):
    site = make_site(webs=1, workers=1, environment={"WEB_DRAIN": "20"})
    (web,) = site.webs
    request = body("n=10000 itl=20", stream=True)
    with (
        person.http(web.url) as http,
        person.http(web.url) as other,
        other.stream("POST", "/v1/chat/completions", json=request) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        assert http.get("/readyz").json()["ready"]  # and the connection is kept
        os.kill(web.pid, signal.SIGTERM)
        wait_until(lambda: not _accepts(web), "it accepts nothing any more")
        last = http.get("/readyz")  # on the connection that was open
        assert (last.status_code, last.json()["web"], last.headers["connection"]) == (503, "stopping", "close")
        for _ in range(50):  # a second and more
            assert "error" not in next(line for line in lines if line.startswith("data: "))
        assert web.is_alive
    person.wait_for_status("CANCELLED")  # its client has left
    wait_until(lambda: not web.is_alive, "the process has left")


def _accepts(web: Web) -> bool:
    try:
        socket.create_connection(("127.0.0.1", web.port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_without_a_socket_it_listens_on_host_and_port(make_site, tmp_path):
    port = free_port()
    site = make_site(webs=0, workers=0, environment={"HOST": "127.0.0.1", "PORT": str(port)})
    web = Web(
        "own", [sys.executable, "-m", "chatsite.serve"], tmp_path / "log", environment=site.environment, port=port
    )
    Process.start(web)
    try:
        wait_until(web.answers, "it serves", 30)
        assert httpx.get(f"{web.url}/healthz").status_code == 200
    finally:
        web.stop()
