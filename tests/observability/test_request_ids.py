"""The request's id, from the edge to the worker: returned, logged, and found with one grep."""

import json
import uuid
from typing import Any

import httpx
import pytest
import websockets

from tests.observability.scrape import complete
from tests.people import Person
from tests.site import Process, Site, wait_until


def lines(process: Process) -> list[dict[str, Any]]:
    """What a process has logged as JSON."""
    return [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]


def about(process: Process, request: str) -> list[str]:
    """Messages that belong to a request."""
    return [line["message"] for line in lines(process) if line["request"] == request]


def test_one_id_from_the_edge_to_the_engine(site: Site, person: Person) -> None:
    mine = f"trace-{uuid.uuid4().hex}"
    answer = complete(person, site.webs[0].url, "n=3 itl=1 ttft=1", **{"X-Request-ID": mine})
    assert answer.headers["x-request-id"] == mine
    generation = person.newest()
    assert generation.request_id == mine
    web, worker = site.webs[0], site.workers[0]
    wait_until(lambda: any("POST /v1/chat/completions 200" in said for said in about(web, mine)), "the web's line")
    wait_until(lambda: any("ends: stop, 3 tokens" in said for said in about(worker, mine)), "the worker's line")
    assert any("starts: attempt 1" in said for said in about(worker, mine))
    named = {line["generation"] for line in lines(worker) if line["request"] == mine}
    assert named == {str(generation.pk)}
    assert not about(site.webs[1], mine)


def test_without_one_the_generations_id_is_the_requests(site: Site, person: Person) -> None:
    answer = complete(person, site.webs[0].url, "n=1 itl=1 ttft=1")
    own = answer.headers["x-request-id"]
    assert own == str(person.newest().pk) == person.newest().request_id
    wait_until(lambda: about(site.workers[0], own) and about(site.webs[0], own), "lines of both")


def test_two_requests_with_one_id_are_two_generations(site: Site, person: Person) -> None:
    mine = str(uuid.uuid4())
    for _ in range(2):
        complete(person, site.webs[0].url, "n=1 itl=1 ttft=1", **{"X-Request-ID": mine})
    found = person.user.generations.filter(request_id=mine)
    assert found.count() == 2 and not found.filter(pk=mine).exists()


@pytest.mark.parametrize("given", ["", "two words", "a" * 101, "ä", 'x"; drop', "%0a\u00a0"])
def test_an_id_that_could_not_be_logged_is_replaced(site: Site, given: str) -> None:
    headers = [(b"x-request-id", given.encode())]
    answer = httpx.get(f"{site.webs[0].url}/healthz", headers=headers, timeout=30)
    assert answer.status_code == 200
    assert str(uuid.UUID(answer.headers["x-request-id"])) != given


def test_every_response_has_one(site: Site, person: Person) -> None:
    with person.http(site.webs[0].url) as http:
        for path in ("/healthz", "/", "/none", "/v1/models", "/v1/none", "/api/v1/conversations", "/api/v1/none"):
            assert http.get(path, headers={"X-Request-ID": "same"}).headers.get_list("x-request-id") == ["same"]
        assert http.post("/v1/chat/completions", content=b"{").headers["x-request-id"]


async def test_so_has_a_websocket_accepted_or_not(site: Site, person: Person) -> None:
    url = f"{site.webs[0].ws_url}/ws/user"
    async with websockets.connect(url, additional_headers=person.headers | {"X-Request-ID": "socket-1"}) as socket:
        assert socket.response and socket.response.headers["x-request-id"] == "socket-1"
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(url)
    assert refused.value.response.status_code == 401 and refused.value.response.headers["x-request-id"]


def test_a_path_with_a_line_break_stays_one_line(site: Site, person: Person) -> None:
    mine = f"break-{uuid.uuid4().hex}"
    with person.http(site.webs[0].url) as http:
        http.get("/api/v1/x%0aINFO%20forged", headers={"X-Request-ID": mine})
    wait_until(lambda: any(said.startswith("GET ") for said in about(site.webs[0], mine)), "the line")
    (line,) = (said for said in about(site.webs[0], mine) if said.startswith("GET "))
    assert line.startswith("GET /api/v1/x%0aINFO%20forged 404 ")


def test_what_a_link_in_an_email_holds_is_not_logged(site: Site) -> None:
    secret = uuid.uuid4().hex
    httpx.get(f"{site.webs[0].url}/accounts/password/reset/key/1-{secret}/", timeout=30)
    httpx.get(f"{site.webs[0].url}/accounts/login/?next={secret}", headers={"X-Request-ID": secret[:8]}, timeout=30)
    wait_until(lambda: any(said.startswith("GET ") for said in about(site.webs[0], secret[:8])), "the line")
    assert secret not in "".join(line["message"] for line in lines(site.webs[0]) if line["logger"] == "chatsite.access")
