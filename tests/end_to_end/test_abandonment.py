"""Answers that nobody follows are cancelled (ABANDON_AFTER), those of people who come back are not."""

import os
import time
from collections.abc import Iterator

import pytest
import redis

from billing.models import LedgerEntry
from conversations.transcript import turns
from inference.abandonment import ABANDONED
from inference.models import Generation, Worker
from inference.viewers import VIEWER_S
from tests.end_to_end.calls import body
from tests.end_to_end.test_sse import events, read, send, text_of
from tests.people import Person, numbers
from tests.site import Site, database_url_of_tests, wait_until

AFTER_S, BUSY_S = 3.0, 1.0


@pytest.fixture(scope="module")
def impatient(committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site of two slots that waits 3 s for people who left, and 1 s while others wait."""
    environment = {"ABANDON_AFTER": f"{AFTER_S}", "ABANDON_AFTER_BUSY": f"{BUSY_S}", "HEARTBEAT": "0.5"}
    with Site(
        tmp_path_factory.mktemp("impatient"),
        database_url=database_url_of_tests(),
        redis_url=os.environ["REDIS_URL"],
        slots=2,
        environment=environment,
    ) as running:
        yield running
    Generation.objects.filter(status__in=Generation.OPEN).delete()
    Worker.objects.all().delete()


def row(generation: str) -> Generation:
    return Generation.objects.get(pk=generation)


def test_nobody_ever_follows(impatient: Site, person: Person) -> None:
    """What was written is kept, counted and shown to who returns."""
    chat, url = person.chat(), impatient.webs[0].url
    generation = send(person, url, chat, "n=10000 itl=20")
    wait_until(lambda: not row(generation).is_open, "it is abandoned", 15)
    assert (row(generation).status, row(generation).error_code) == ("CANCELLED", ABANDONED)
    found = read(person, url, chat)
    written = numbers(text_of(found))
    assert len(written) > 20 and written == list(range(len(written)))
    assert (found[-1].event, found[-1].data["finish_reason"]) == ("done", "cancelled")
    assert LedgerEntry.objects.get(generation_id=generation).completion_tokens >= len(written)
    assert turns(person.user.conversations.get(pk=chat), None)[-1].ending == "Stopped: nobody was reading"


def test_reloads_do_not_trip_it_and_a_closed_tab_does(impatient: Site, person: Person) -> None:
    chat = person.chat()
    generation = send(person, impatient.webs[0].url, chat, "n=10000 itl=50")
    until = time.monotonic() + 2.5 * AFTER_S
    reload = 0
    while time.monotonic() < until:  # two web processes take turns; between them nobody follows for a moment
        web = impatient.webs[reload % 2]
        with person.http(web.url).stream("GET", f"/api/v1/conversations/{chat}/stream") as response:
            deltas = (event for event in events(response) if event.event == "delta")
            for _ in range(15):
                next(deltas)
        reload += 1
        time.sleep(0.3)  # the reload itself
    assert reload > 3 and row(generation).is_open and not row(generation).cancel_requested
    wait_until(lambda: row(generation).status == "CANCELLED", "the closed tab's answer ends", 4 * AFTER_S)


def test_polling_is_reading(impatient: Site, person: Person) -> None:
    chat, http = person.chat(), person.http(impatient.webs[0].url)
    generation = send(person, impatient.webs[0].url, chat, "n=10000 itl=50")
    until = time.monotonic() + 2.5 * AFTER_S
    while time.monotonic() < until:
        assert http.get(f"/api/v1/conversations/{chat}/messages").status_code == 200
        time.sleep(0.5)
    assert row(generation).is_open
    http.post(f"/api/v1/conversations/{chat}/cancel")


def test_while_others_wait_patience_is_shorter(impatient: Site, person: Person, stranger: Person) -> None:
    url = impatient.webs[0].url
    left = [send(person, url, person.chat(), "n=10000 itl=50") for _ in range(2)]
    chat = stranger.chat()
    waiting = send(stranger, url, chat, "n=3 itl=1")
    began = time.monotonic()
    assert numbers(text_of(read(stranger, url, chat))) == [0, 1, 2]
    assert row(waiting).finish_reason == "stop"
    assert {row(generation).error_code for generation in left} >= {ABANDONED}
    assert time.monotonic() - began < 10 * AFTER_S
    for generation in left:
        wait_until(lambda generation=generation: not row(generation).is_open, "the other ends too", 15)  # type: ignore[misc]


def test_call_of_a_killed_web_process_ends(impatient: Site, person: Person) -> None:
    """/v1: nobody can come back for it. The dead process's place among the viewers lapses by itself."""
    web = impatient.webs[1]
    request = body("n=10000 itl=50", stream=True)
    with person.http(web.url).stream("POST", "/v1/chat/completions", json=request) as response:
        generation = response.headers["x-request-id"]
        wait_until(lambda: row(generation).status == "RUNNING", "it runs")
        impatient.kill(web)
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as valkey:  # instead of waiting for VIEWER_S
        (member,) = valkey.zrange(f"viewers:{generation}", 0, -1)
        valkey.zincrby(f"viewers:{generation}", -1000 * VIEWER_S, member)
    assert row(generation).is_open
    wait_until(lambda: row(generation).status == "CANCELLED", "nobody reads it", 30)
    impatient.restart(web)
