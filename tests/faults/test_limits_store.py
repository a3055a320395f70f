"""The counters of limits while their Valkey is away, empty, or back with old data."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from billing import counters
from billing.truth import drifted
from inference.models import Generation
from tests.billing.limits import used
from tests.end_to_end.calls import body
from tests.faults.limits import Limit, booked, limit, parallel
from tests.faults.own_stores import OwnStore, own_valkey
from tests.people import Person
from tests.site import Site, database_url_of_tests, stopped, wait_until

__all__ = ["limit", "own_valkey"]
pytestmark = pytest.mark.faults


@pytest.fixture
def site_with_valkey(db: None, tmp_path: Path, own_valkey: OwnStore, settings: Any) -> Iterator[Site]:
    """A site on a Valkey that this test may break; the counters of this process are the same."""
    settings.REDIS_URLS = [own_valkey.url]
    counters.store.cache_clear()
    url = own_valkey.url
    with Site(tmp_path, database_url=database_url_of_tests(), redis_url=url, webs=2, slots=32) as site:
        yield site
    counters.store.cache_clear()


def test_counters_come_back_as_the_ledger_says(
    site_with_valkey: Site, own_valkey: OwnStore, person: Person, limit: Limit
) -> None:
    """Case 19: away, empty, and with old data; an answer runs all the while and stays counted."""
    limit(("tokens", 3000, 3600))
    http = person.http(site_with_valkey.webs[0].url)
    assert http.post("/v1/chat/completions", json=body("n=5 itl=1 ttft=1")).status_code == 200
    done = booked(person)
    running = person.http(site_with_valkey.webs[1].url)
    request = body("n=1000 itl=30 ttft=1", stream=True, max_tokens=1500)
    with running.stream("POST", "/v1/chat/completions", json=request) as stream:
        lines = stream.iter_lines()
        next(lines)
        row = person.newest()
        held = done + row.prompt_tokens + row.grant
        assert used(person.user) == {"tokens_per_hour": held}

        with stopped(own_valkey.child.pid):
            began = time.monotonic()
            answer = http.post("/v1/chat/completions", json=body("n=1"))
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
            assert 1 <= int(answer.headers["Retry-After"]) <= 60 and time.monotonic() - began < 8
            assert http.get("/v1/models").status_code == 200  # the rest of the site goes on

        counters.store().flushall()
        answers = parallel(person, [web.url for web in site_with_valkey.webs], 8, body("n=900 itl=1 ttft=1"))
        assert {answer.status_code for answer in answers} <= {200, 429, 503}
        later = Generation.objects.filter(user=person.user, created_at__gte=row.created_at)
        assert done + sum(one.prompt_tokens + one.grant for one in later) <= 3000
        wait_until(lambda: Generation.objects.filter(user=person.user, status="RUNNING").count() == 1, "the others end")
        held = booked(person) + row.prompt_tokens + row.grant
        wait_until(lambda: used(person.user) == {"tokens_per_hour": held}, "the others are settled")

        old = own_valkey.url
        snapshot = counters.store().dump(_window(person))
        stale_epoch = counters.store().get("limits:epoch")
        own_valkey.kill()
        own_valkey.start()
        assert own_valkey.url == old
        counters.store().set("limits:epoch", stale_epoch)  # as after a restart with yesterday's data
        counters.store().restore("limits:w:1:x:60", 0, snapshot)
        assert used(person.user) == {"tokens_per_hour": held}
    wait_until(lambda: not Generation.objects.get(pk=row.pk).is_open, "the answer is cancelled")
    wait_until(lambda: used(person.user) == {"tokens_per_hour": booked(person)}, "everything is settled")
    assert booked(person) <= 3000 and drifted() == []
    assert counters.held(older_than_s=-1) == []


def _window(person: Person) -> str:
    keys = counters.window_keys(counters.current_epoch())
    return next(key for key, subject, _ in keys if subject == f"u{person.user.pk}")
