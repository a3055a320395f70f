"""Metrics of processes that die: what they had open is closed, what they counted stays, a failover has its reason."""

import asyncio
import signal
from collections.abc import Callable

import httpx
import pytest
import websockets

from tests.faults.streams import ask, read_to_end
from tests.observability.scrape import scrape
from tests.people import Person
from tests.site import Site, wait_until

pytestmark = pytest.mark.faults


async def test_open_streams_by_transport_and_none_once_their_process_is_dead(
    new_site: Callable[..., Site], person: Person
) -> None:
    site = await asyncio.to_thread(new_site, webs=2, workers=1)

    def are_open(sse: int, websocket: int) -> Callable[[], bool]:
        def holds() -> bool:
            now = scrape(site.webs[0].url)
            found = [now.sum("chatsite_open_streams", transport=kind) for kind in ("sse", "websocket")]
            return found == [sse, websocket]

        return holds

    body = {"model": "echo", "stream": True, "messages": [{"role": "user", "content": "[[n=3000 itl=20]]"}]}
    doomed = site.webs[1]
    async with (
        websockets.connect(f"{doomed.ws_url}/ws/user", additional_headers=person.headers) as socket,
        httpx.AsyncClient(base_url=doomed.url, headers=person.headers, timeout=30) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        assert socket.response and socket.response.headers["x-request-id"]
        assert response.status_code == 200, await response.aread()
        pieces = response.aiter_raw()  # held: the response ends with its iterator
        assert await anext(pieces)
        await asyncio.to_thread(wait_until, are_open(1, 1), "both are open")
        await asyncio.to_thread(site.kill, doomed)
        await asyncio.to_thread(wait_until, are_open(0, 0), "a dead process holds nothing open")
    assert (await asyncio.to_thread(scrape, site.webs[0].url)).sum("chatsite_http_requests_total") > 0


def test_a_failover_is_counted_with_its_reason(new_site: Callable[..., Site], person: Person) -> None:
    site = new_site(webs=1, workers=2)
    url = site.webs[0].url
    before = scrape(url)
    readings = ask(person, url, "[[n=100 itl=20 ttft=10]]")
    next(reading for reading in readings if len(reading.numbers) >= 10)
    pid = person.newest().worker.pid
    site.kill(next(worker for worker in site.workers if worker.pid == pid), signal.SIGKILL)
    assert read_to_end(readings).numbers == list(range(100))
    now = scrape(url)

    def moved(name: str, **labels: str) -> float:
        return now.sum(name, **labels) - before.sum(name, **labels)

    assert moved("chatsite_failovers_total", reason="lease_lapsed") == 1
    assert moved("chatsite_reader_repairs_total", kind="check") >= 1  # it heard nothing for more than a second
    assert moved("chatsite_queue_wait_seconds_count") == 1  # a second attempt is no second wait
