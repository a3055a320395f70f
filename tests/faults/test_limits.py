"""Limits over HTTP: what is admitted, booked and told, and what a Valkey that is away or empty changes."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db import connection

from billing import counters
from billing.models import ApiKey, LedgerEntry, Plan, PlanWindow, User
from billing.truth import drifted
from inference.models import Generation
from tests.billing.limits import used
from tests.end_to_end.calls import body, chunks
from tests.faults.test_store_away import OwnValkey, own_valkey
from tests.people import Person
from tests.site import Site, database_url_of_tests, stopped, wait_until

__all__ = ["own_valkey"]
pytestmark = pytest.mark.faults

Limit = Callable[..., None]


@pytest.fixture(scope="module")
def shared_site(committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with Site(
        folder, database_url=database_url_of_tests(), redis_url=os.environ["REDIS_URL"], webs=2, slots=32
    ) as site:
        yield site
    Generation.objects.filter(status__in=Generation.OPEN).delete()


@pytest.fixture
def limit(person: Person) -> Iterator[Limit]:
    """Put the person on a plan of their own with these windows (kind, amount, seconds)."""
    plan = Plan.objects.create(slug=f"p{person.user.pk.hex[:20]}", name="p", max_concurrent=100)

    def apply(*windows: tuple[str, int, int]) -> None:
        for kind, amount, seconds in windows:
            PlanWindow.objects.create(plan=plan, kind=kind, amount=amount, seconds=seconds)
        User.objects.filter(pk=person.user.pk).update(plan=plan, plan_is_own=True)
        person.user.plan = plan

    yield apply
    User.objects.filter(plan=plan).update(plan=Plan.objects.get(is_default=True))
    plan.delete()


def parallel(person: Person, urls: list[str], count: int, request: dict[str, Any]) -> list[httpx.Response]:
    """That many calls at the same moment."""
    barrier = threading.Barrier(count)

    def call(number: int) -> httpx.Response:
        with person.http(urls[number % len(urls)]) as http:
            barrier.wait(20)
            return http.post("/v1/chat/completions", json=request)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


def booked(person: Person) -> int:
    """Tokens in the person's ledger."""
    return sum(
        entry.prompt_tokens + entry.completion_tokens for entry in LedgerEntry.objects.filter(user_id=person.user.pk)
    )


def test_five_parallel_calls_get_no_more_than_the_window(shared_site: Site, person: Person, limit: Limit) -> None:
    """Case 14."""
    limit(("tokens", 200, 60))
    urls = [web.url for web in shared_site.webs]
    answers = parallel(person, urls, 5, body("n=500 itl=1 ttft=1"))
    assert {answer.status_code for answer in answers} <= {200, 429}
    assert any(answer.status_code == 429 for answer in answers)
    rows = Generation.objects.filter(user=person.user)
    assert 0 < sum(row.prompt_tokens + row.grant for row in rows) <= 200
    assert 0 < booked(person) == used(person.user)["tokens_per_minute"] <= 200
    refused = next(answer for answer in answers if answer.status_code == 429)
    error = refused.json()["error"]
    assert error["code"] == "tokens_per_minute_used_up" and error["limit_of"] == "user"
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert error["renews_at"].startswith("20") and 0 < error["retry_after"] <= error["renews_in"] <= 61


def test_quota_for_one_lets_one_of_many_through(shared_site: Site, person: Person, limit: Limit) -> None:
    """Case 16: someone the counters have never seen."""
    limit(("requests", 1, 3600))
    urls = [web.url for web in shared_site.webs]
    answers = parallel(person, urls, 10, body("n=1 ttft=1"))
    assert sorted(answer.status_code for answer in answers) == [200, *[429] * 9]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["code"] == "requests_per_hour_used_up"
    assert refused.headers["Retry-After"] == "60" and refused.json()["error"]["retry_after"] > 3000
    assert Generation.objects.filter(user=person.user).count() == 1


def test_every_v1_answer_says_what_is_left(shared_site: Site, person: Person, limit: Limit) -> None:
    limit(("requests", 5, 3600), ("tokens", 1000, 60), ("tokens", 5000, 3600))
    http = person.http(shared_site.webs[0].url)
    whole = http.post("/v1/chat/completions", json=body("n=2 itl=1 ttft=1", max_tokens=50))
    assert whole.headers["x-ratelimit-limit-tokens"] == "1000"
    assert int(whole.headers["x-ratelimit-remaining-tokens"]) == 1000 - person.newest().prompt_tokens - 50
    assert 55 < float(whole.headers["x-ratelimit-reset-tokens"].removesuffix("s")) < 61
    with http.stream("POST", "/v1/chat/completions", json=body("n=2 itl=1", stream=True, max_tokens=50)) as streamed:
        streamed.read()
    others = [
        http.get("/v1/models"),
        http.post("/v1/chat/completions", json={"messages": 5}),
        http.post("/v1/chat/completions", json=body("n=1") | {"model": "none"}),
        http.get("/v1/nothing"),
    ]
    for answer in (streamed, *others):
        assert answer.headers["x-ratelimit-remaining-requests"] == "3", answer.request.url


def test_a_grant_cut_by_a_window_ends_as_limit_reached(shared_site: Site, person: Person, limit: Limit) -> None:
    limit(("tokens", 120, 3600))
    url = shared_site.webs[0].url
    answer = person.http(url).post("/v1/chat/completions", json=body("n=500 itl=1 ttft=1")).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["chatsite_finish_reason"] == "limit_reached"
    assert answer["choices"][0]["chatsite_renews_at"] == person.newest().renews_at.isoformat()
    assert answer["usage"]["total_tokens"] == 120 == booked(person)


def test_a_client_that_leaves_at_frame_6_pays_once(shared_site: Site, person: Person, limit: Limit) -> None:
    """Case 17."""
    limit(("tokens", 5000, 3600))
    Plan.objects.filter(users=person.user).update(price_multiplier=2)
    request = body("n=1000 itl=20 ttft=1", stream=True, max_tokens=2000)
    with person.http(shared_site.webs[0].url).stream("POST", "/v1/chat/completions", json=request) as response:
        frames = (line for line in response.iter_lines() if line.startswith("data: "))
        for _ in range(6):
            next(frames)
    person.wait_for_status("CANCELLED")
    entry = LedgerEntry.objects.get(user_id=person.user.pk)
    row = person.newest()
    assert entry.prompt_tokens == row.prompt_tokens and 0 < entry.completion_tokens == row.completion_tokens < 1000
    assert entry.price_multiplier == 2
    wait_until(lambda: used(person.user)["tokens_per_hour"] == booked(person), "the counters are settled")


def test_deleting_the_chat_changes_nothing(shared_site: Site, person: Person, limit: Limit) -> None:
    """Case 20."""
    limit(("tokens", 5000, 3600), ("requests", 10, 3600))
    http, chat = person.http(shared_site.webs[0].url), person.chat()
    http.post("/v1/chat/completions", json=body("n=3 itl=1 ttft=1"))
    http.post("/v1/chat/completions", json=body("n=3 itl=1 ttft=1", conversation_id=str(chat)))
    wait_until(lambda: used(person.user)["tokens_per_hour"] == booked(person), "the counters are settled")
    before, usage = used(person.user), http.get("/v1/usage").json()
    assert http.delete(f"/api/v1/conversations/{chat}").status_code == 204
    assert used(person.user) == before and before["requests_per_hour"] == 2
    assert http.get("/v1/usage").json() == usage
    counters.store().flushdb()
    assert used(person.user) == before


def test_refusals_write_nothing(shared_site: Site, person: Person, limit: Limit) -> None:
    limit(("requests", 1, 3600))
    http = person.http(shared_site.webs[0].url)
    http.post("/v1/chat/completions", json=body("n=1 ttft=1"))
    wait_until(lambda: not person.newest().is_open, "it has ended")
    ApiKey.objects.filter(user=person.user).update(last_used_at=None)
    http.post("/v1/chat/completions", json=body("n=1 ttft=1"))  # sets last_used_at, once a minute
    before = _versions(person)
    for _ in range(10):
        assert http.post("/v1/chat/completions", json=body("n=1 ttft=1")).status_code == 429
    assert _versions(person) == before


def _versions(person: Person) -> list[tuple[Any, ...]]:
    """Which transaction wrote each row of the person's."""
    tables = {"billing_user": "id", "billing_apikey": "user_id", "billing_ledgerentry": "user_id"}
    tables |= {"inference_generation": "user_id", "inference_served": "user_id"}
    query = " UNION ALL ".join(
        f"SELECT '{table}', xmin::text, ctid::text FROM {table} WHERE {column} = %(id)s"
        for table, column in tables.items()
    )
    with connection.cursor() as cursor:
        cursor.execute(query, {"id": person.user.pk})
        return sorted(cursor.fetchall())


# -- a Valkey of its own -------------------------------------------------------------------------------------------


@pytest.fixture
def site_with_valkey(db: None, tmp_path: Path, own_valkey: OwnValkey, settings: Any) -> Iterator[Site]:
    """A site on a Valkey that this test may break; the counters of this process are the same."""
    settings.REDIS_URLS = [own_valkey.store.url]
    counters.store.cache_clear()
    url = own_valkey.store.url
    with Site(tmp_path, database_url=database_url_of_tests(), redis_url=url, webs=2, slots=32) as site:
        yield site
    counters.store.cache_clear()


def test_counters_come_back_as_the_ledger_says(
    site_with_valkey: Site, own_valkey: OwnValkey, person: Person, limit: Limit
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

        old = own_valkey.store.url
        snapshot = counters.store().dump(_window(person))
        stale_epoch = counters.store().get("limits:epoch")
        own_valkey.kill()
        own_valkey.start()
        assert own_valkey.store.url == old
        counters.store().set("limits:epoch", stale_epoch)  # as after a restart with yesterday's data
        counters.store().restore("limits:w:1:x:60", 0, snapshot)
        assert used(person.user) == {"tokens_per_hour": held}
    person.wait_for_status("CANCELLED", 10)
    wait_until(lambda: used(person.user) == {"tokens_per_hour": booked(person)}, "everything is settled")
    assert booked(person) <= 3000 and drifted() == []
    assert counters.held(older_than_s=-1) == []


def _window(person: Person) -> str:
    keys = counters.window_keys(counters.current_epoch())
    return next(key for key, subject, _ in keys if subject == f"u{person.user.pk}")


def test_a_killed_workers_answer_stays_reserved_and_is_settled(
    make_site: Callable[..., Site], person: Person, limit: Limit
) -> None:
    limit(("tokens", 3000, 3600))
    site = make_site(webs=1, workers=2)
    request = body("n=100 itl=20 ttft=1", stream=True, max_tokens=1000)
    with person.http(site.webs[0].url).stream("POST", "/v1/chat/completions", json=request) as stream:
        lines = stream.iter_lines()
        for _ in range(20):
            next(lines)
        row = person.newest()
        worker = next(process for process in site.workers if process.pid == row.worker.pid)
        site.kill(worker, signal.SIGKILL)
        assert used(person.user) == {"tokens_per_hour": row.prompt_tokens + row.grant}
        found = chunks(list(lines))
    assert found[-1]["choices"][0]["finish_reason"] == "stop"
    wait_until(lambda: used(person.user)["tokens_per_hour"] == booked(person), "it is settled")
    assert booked(person) == row.prompt_tokens + 100
    assert json.dumps(found).count("error") == 0
