"""Requests while Valkey, or every worker, is away."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from inference.models import Worker
from tests.faults.own_stores import OwnStore, own_valkey
from tests.faults.streams import ask, read_to_end
from tests.people import Person
from tests.site import Site, database_url_of_tests, stopped, wait_until

__all__ = ["own_valkey"]
CALL = {"model": "echo", "messages": [{"role": "user", "content": "[[n=1 ttft=1]]"}]}
PATIENCE_S = 8.0


@pytest.fixture
def own_site(db: None, tmp_path: Path, own_valkey: OwnStore) -> Iterator[Site]:
    with Site(
        tmp_path,
        database_url=database_url_of_tests(),
        redis_url=own_valkey.url,
        webs=1,
        environment={"LEASE": "1"},
    ) as running:
        yield running


@pytest.mark.faults
def test_requests_end_in_seconds_while_valkey_hangs(own_site: Site, person: Person, own_valkey: OwnStore) -> None:
    http = person.http(own_site.webs[0].url)
    chat = person.chat()
    assert http.post("/v1/chat/completions", json=CALL).status_code == 200
    with stopped(own_valkey.child.pid):
        for url, body in (
            ("/v1/chat/completions", CALL),
            ("/v1/chat/completions", CALL | {"stream": True}),
            (f"/api/v1/conversations/{chat}/messages", {"content": "[[n=1 ttft=1]]", "id": str(uuid.uuid4())}),
        ):
            began = time.monotonic()
            answer = http.post(url, json=body)
            assert time.monotonic() - began < PATIENCE_S
            assert answer.status_code == 503, answer.text
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
            assert answer.json()["error"]["code"] == "unavailable"
    assert http.post("/v1/chat/completions", json=CALL).status_code == 200
    assert not person.user.generations.exclude(status="FINISHED").exists()


@pytest.mark.faults
def test_a_valkey_that_was_away_is_found_soon(own_site: Site, person: Person, own_valkey: OwnStore) -> None:
    """By itself, Celery would try in seconds 2, 6, 12, 20, and then every 30 s."""
    http = person.http(own_site.webs[0].url)
    assert http.post("/v1/chat/completions", json=CALL).status_code == 200
    own_valkey.kill()
    time.sleep(7)  # that is the fault
    own_valkey.start()
    began = time.monotonic()
    wait_until(lambda: http.post("/v1/chat/completions", json=CALL).status_code == 200, "an answer")
    assert time.monotonic() - began < 3


@pytest.mark.faults
def test_no_worker_is_503_at_once(own_site: Site, person: Person) -> None:
    own_site.kill(own_site.workers[0])
    Worker.objects.update(lease_until="2020-01-01T00:00:00Z")  # nobody has been alive for long
    http = person.http(own_site.webs[0].url)
    answer = http.post("/v1/chat/completions", json=CALL)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker")
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    chat = person.chat()
    sent = http.post(f"/api/v1/conversations/{chat}/messages", json={"content": "[[n=1 ttft=1]]"})
    assert sent.status_code == 202  # people wait, and are told
    with http.stream("GET", f"/api/v1/conversations/{chat}/stream") as response:
        queued = next(line for line in response.iter_lines() if line.startswith("data:"))
    assert '"event":"queued"' in queued and '"workers":"none"' in queued
    own_site.restart(own_site.workers[0])
    assert (
        "event: done" in httpx.get(f"{http.base_url}/api/v1/conversations/{chat}/stream", headers=person.headers).text
    )


@pytest.mark.faults
def test_an_answer_survives_a_valkey_that_loses_everything(
    own_site: Site, person: Person, own_valkey: OwnStore
) -> None:
    """The worker, which holds every entry, fills the log again; the reader notices a pause."""
    readings = ask(person, own_site.webs[0].url, "[[n=150 itl=20]]")
    for reading in readings:
        if len(reading.numbers) >= 20:
            own_valkey.kill()
            own_valkey.start()
            break
    reading = read_to_end(readings)
    assert reading.numbers == list(range(150))
    assert reading.last["finish_reason"] == "stop"
    assert read_to_end(ask(person, own_site.webs[0].url, "[[n=3 itl=1]]")).numbers == [0, 1, 2]
