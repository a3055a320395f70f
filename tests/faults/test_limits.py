"""Limits over HTTP: what is admitted, booked and told."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from billing import counters
from billing.models import ApiKey, LedgerEntry, Plan
from inference.models import Generation
from tests.billing.limits import used
from tests.end_to_end.calls import body, chunks
from tests.faults.limits import Limit, booked, limit, parallel
from tests.faults.streams import ask, read_to_end
from tests.people import Person
from tests.site import Site, database_url_of_tests, wait_until

__all__ = ["limit"]
pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def shared_site(committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with Site(
        folder, database_url=database_url_of_tests(), redis_url=os.environ["REDIS_URL"], webs=2, workers=2
    ) as site:
        yield site
    Generation.objects.filter(status__in=Generation.OPEN).delete()


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


def test_the_native_stream_says_when_it_renews(shared_site: Site, person: Person, limit: Limit) -> None:
    limit(("tokens", 200, 3600))
    reading = read_to_end(ask(person, shared_site.webs[0].url, "[[n=500 itl=1 ttft=1]]"))
    assert reading.last["finish_reason"] == "limit_reached"
    assert reading.last["renews_at"] == person.newest().renews_at.isoformat()


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


def test_a_killed_workers_answer_stays_reserved_and_is_settled(shared_site: Site, person: Person, limit: Limit) -> None:
    limit(("tokens", 3000, 3600))
    site = shared_site
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
