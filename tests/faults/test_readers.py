"""Readers whose pushes get lost, whose web process stalls, or who take nothing (cases 13 and 27)."""

import asyncio
import os
import re
import socket
import threading
import uuid
from collections.abc import Iterator

import httpx
import msgpack
import pytest
import redis
from channels.layers import get_channel_layer
from django.db import connection

from inference.models import Generation
from tests.end_to_end.calls import body
from tests.end_to_end.test_sse import read, send, text_of
from tests.faults.streams import ask, read_to_end
from tests.people import Person, make_person, numbers
from tests.site import Site, raw_request, stopped, wait_until

pytestmark = pytest.mark.faults


@pytest.fixture
def valkey() -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        yield client


class Following(threading.Thread):
    """Follows a conversation's stream in the background."""

    def __init__(self, person: Person, url: str, chat: uuid.UUID) -> None:
        super().__init__(daemon=True)
        self.found = []
        self._response = (person, url, chat)

    def run(self) -> None:
        from tests.end_to_end.test_sse import events

        person, url, chat = self._response
        with person.http(url).stream("GET", f"/api/v1/conversations/{chat}/stream") as response:
            for event in events(response):
                self.found.append(event)

    @property
    def numbers(self) -> list[int]:
        return numbers(text_of(list(self.found)))

    def wait_for(self, count: int, timeout_s: float = 20) -> None:
        wait_until(lambda: len(self.numbers) >= count, f"{count} tokens have come", timeout_s)

    def end(self) -> list[int]:
        self.join(60)
        assert self.found[-1].event == "done" and self.found[-1].data["finish_reason"] == "stop"
        return self.numbers


def follow(person: Person, site: Site, count: int = 2) -> tuple[Generation, list[Following]]:
    """An answer of 300 tokens in 9 s, followed at each of the first web processes."""
    chat = person.chat()
    send(person, site.webs[0].url, chat, "n=300 itl=30 emoji=1")
    readers = [Following(person, web.url, chat) for web in site.webs[:count]]
    for reader in readers:
        reader.start()
        reader.wait_for(10)
    return person.newest(), readers


def test_a_stalled_web_process_catches_up_and_holds_up_nobody_else(make_site, person):
    site = make_site(webs=2)
    _, (stalls, goes_on) = follow(person, site)
    with stopped(site.webs[0].pid):
        had = len(stalls.numbers)
        goes_on.wait_for(had + 150)  # 4.5 s
        assert len(stalls.numbers) <= had + 10  # what was on its way
    stalls.wait_for(had + 150)
    assert stalls.end() == goes_on.end() == list(range(300))


def test_subscriptions_that_the_server_cuts_are_made_up_for(make_site, person, valkey):
    site = make_site(webs=2)
    _, readers = follow(person, site)
    for count in range(40, 240, 40):
        assert valkey.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        for reader in readers:
            reader.wait_for(count)
    assert [reader.end() for reader in readers] == [list(range(300))] * 2


def test_a_subscriber_cut_at_its_buffer_limit_is_made_up_for(make_site, person, valkey):
    """Case 13: more messages than are held for a process that does not take them."""
    site = make_site(webs=2)
    _, (stalls, goes_on) = follow(person, site)
    message = {"type": "relay", "data": msgpack.packb([99, b"x" * 10_000])}  # of a version that nobody knows
    payload = get_channel_layer().serialize(message)
    limits = valkey.config_get("client-output-buffer-limit")["client-output-buffer-limit"]
    cuts = valkey.info("stats")["client_output_buffer_limit_disconnections"]
    valkey.config_set("client-output-buffer-limit", "pubsub 1mb 1mb 1")
    try:
        with stopped(site.webs[0].pid):
            pushes = valkey.pipeline(transaction=False)
            for channel in valkey.pubsub_channels("asgiweb*"):
                for _ in range(2000):  # 20 MB: more than the kernel takes
                    pushes.publish(channel, payload)
            pushes.execute()
            goes_on.wait_for(len(stalls.numbers) + 50)
    finally:
        valkey.config_set("client-output-buffer-limit", limits)
    assert valkey.info("stats")["client_output_buffer_limit_disconnections"] > cuts
    assert stalls.end() == goes_on.end() == list(range(300))


def test_a_push_that_is_lost_is_read_from_the_log_and_said(make_site, person, valkey):
    """The process is taken out of the viewers, so that nothing is pushed until it finds that out."""
    site = make_site(webs=1)
    generation, (reader,) = follow(person, site, 1)
    for count in (60, 120):
        valkey.delete(f"viewers:{generation.pk}")
        reader.wait_for(count)
    assert reader.end() == list(range(300))
    assert "had missed something and read the log" in site.webs[0].log.read_text()


# -- slow readers -------------------------------------------------------------------------------------------


def open_deaf(port: int, person: Person, chat: uuid.UUID) -> socket.socket:
    """A reader that asks for a stream and takes nothing of it."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    deaf.settimeout(20)
    deaf.connect(("127.0.0.1", port))
    request = f"GET /api/v1/conversations/{chat}/stream HTTP/1.1\r\nHost: localhost\r\n"
    deaf.sendall(f"{request}Authorization: Bearer {person.key}\r\n\r\n".encode())
    return deaf


def take_all(deaf: socket.socket) -> str:
    """What the kernel still has for it."""
    data = b""
    try:
        while part := deaf.recv(65536):
            data += part
    except ConnectionError:
        pass
    return data.decode(errors="replace")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux drops who takes nothing")
def test_who_takes_nothing_is_dropped_may_resume_and_holds_up_nobody(make_site, person, valkey):
    site = make_site(webs=2, environment={"READER_TIMEOUT": "2", "HEARTBEAT": "0.5"})
    chat = person.chat()
    generation = send(person, site.webs[0].url, chat, "n=600 itl=15 emoji=1")
    deaf = [open_deaf(site.webs[0].port, person, chat) for _ in range(5)]
    reader = Following(person, site.webs[1].url, chat)
    reader.start()
    wait_until(lambda: valkey.zcard(f"viewers:{generation}") == 2, "both processes follow")
    wait_until(lambda: valkey.zcard(f"viewers:{generation}") == 1, "the deaf ones are dropped", 30)
    assert person.newest().is_open
    seen = take_all(deaf[0])
    assert "event: done" not in seen
    last = re.findall(r"^id: (\S+)$(?=[\s\S]*\n\n)", seen, re.MULTILINE)
    assert reader.end() == list(range(600))
    # It had whole events up to some place, and goes on from there.
    had = list(parse(seen))
    rest = read(person, site.webs[0].url, chat, **({"Last-Event-ID": last[len(had) - 1]} if had else {}))
    assert numbers(text_of(rest, text_of(had))) == list(range(600))
    for each in deaf:
        each.close()


def parse(stream: str) -> list:
    """The whole events of a stream that broke off, chunked as it came."""
    from tests.end_to_end.test_sse import events

    class Broken:
        @staticmethod
        def iter_lines() -> Iterator[str]:
            plain = re.sub(r"(?:^|\r\n)[0-9a-f]+\r\n", "", stream.partition("\r\n\r\n")[2])
            yield from plain[: plain.rfind("\n\n") + 2].split("\n")

    return list(events(Broken))


# -- many readers, few connections --------------------------------------------------------------------------


@pytest.mark.timeout(180)
def test_100_open_streams_leave_the_pages_a_pool_of_15(make_site, person):
    """Case 27."""
    site = make_site(webs=1, slots=8, environment={"DATABASE_POOL": "15"})
    people = [make_person() for _ in range(5)]
    chats = [(each, each.chat()) for each in people for _ in range(20)]

    async def run() -> set[int]:
        url = site.webs[0].url
        async with httpx.AsyncClient(base_url=url, timeout=30, limits=httpx.Limits(max_connections=500)) as http:

            async def hold(each: Person, chat: uuid.UUID, has_begun: asyncio.Semaphore) -> None:
                path = f"/api/v1/conversations/{chat}"
                content = {"content": "[[n=1 ttft=60000]]"}
                async with sending:  # what many at once may be told on a busy machine is another matter
                    sent = await http.post(f"{path}/messages", json=content, headers=each.headers)
                assert sent.status_code == 202, sent.text
                async with http.stream("GET", f"{path}/stream", headers=each.headers) as response:
                    async for line in response.aiter_lines():
                        if line.startswith("data:") and not begun[chat]:
                            begun[chat] = True
                            has_begun.release()

            sending = asyncio.Semaphore(10)
            has_begun, begun = asyncio.Semaphore(0), dict.fromkeys((chat for _, chat in chats), False)
            holding = [asyncio.create_task(hold(*chat, has_begun)) for chat in chats]
            for _ in chats:
                await asyncio.wait_for(has_begun.acquire(), 60)
            pages = [http.get("/api/v1/conversations", headers=person.headers) for _ in range(60)]
            statuses = {response.status_code for response in await asyncio.gather(*pages)}
            assert not any(task.done() for task in holding)
            for task in holding:
                task.cancel()
            await asyncio.wait(holding)
            return statuses

    assert asyncio.run(run()) == {200}


# -- leaving while it is queued -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_call_whose_client_leaves_while_it_is_queued_is_cancelled(make_site, person, stranger, is_stream):
    site = make_site(webs=1, slots=1)
    busy = ask(stranger, site.webs[0].url, "[[n=200 itl=20]]")
    next(reading for reading in busy if reading.numbers)
    content = httpx.Request("POST", "http://x", json=body("n=5", stream=is_stream)).content
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {person.key}\r\n"
    call = raw_request(site.webs[0].port, f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    person.wait_for_status("WAITING")
    call.close()
    person.wait_for_status("CANCELLED")
    assert person.newest().started_at is None
    assert read_to_end(busy).numbers == list(range(200))
    connection.close()
