"""/metrics: values move as they should, told by every web process for all; strangers see nothing; labels stay few."""

import json
import re
import uuid

import httpx
import pytest
from django.test import Client

from billing.errors import Refusal
from billing.metrics import refusals
from billing.models import User
from inference import metrics
from tests.observability.scrape import Scrape, complete, scrape
from tests.people import Person
from tests.site import METRICS_TOKEN, Site, wait_until

MOVES = {  # what four answers of 20 tokens change
    ("chatsite_http_requests_total", "route", "completions"): 4,
    ("chatsite_http_response_start_seconds_count", "route", "completions"): 4,
    ("chatsite_reader_time_to_first_token_seconds_count", "api", "completions"): 4,
    ("chatsite_time_to_first_token_seconds_count", "model", "echo"): 4,
    ("chatsite_queue_wait_seconds_count", "model", "echo"): 4,
    ("chatsite_generations_ended_total", "finish_reason", "stop"): 4,
    ("chatsite_tokens_total", "direction", "completion"): 80,
}
GAPS = "chatsite_inter_token_latency_seconds_count"  # 19 in each of them, fewer where tokens came together


def test_every_web_process_tells_what_all_processes_counted(site: Site, person: Person) -> None:
    before = scrape(site.webs[0].url)
    for web in (*site.webs, *site.webs):
        complete(person, web.url, "n=20 itl=5 ttft=5")

    def has_moved(now: Scrape) -> bool:
        gaps = now.sum(GAPS, model="echo") - before.sum(GAPS, model="echo")
        moved = all(now.sum(n, **{k: v}) - before.sum(n, **{k: v}) == by for (n, k, v), by in MOVES.items())
        return moved and 0 < gaps <= 4 * 19

    for web in site.webs:
        wait_until(lambda url=web.url: has_moved(scrape(url)), "all figures")
    now = scrape(site.webs[0].url)
    assert now.sum("chatsite_workers", state="ready") >= 1 and now.sum("chatsite_slots") >= site.slots
    assert now.sum("chatsite_checkpoint_seconds_count", model="echo") > 0
    assert now.sum("chatsite_store_up") == 2
    assert now.sum("chatsite_queue_depth", model="echo", band="0") == 0


def test_a_refusal_is_counted_by_its_code(site: Site, person: Person) -> None:
    before = scrape(site.webs[0].url).sum("chatsite_refusals_total", code="model_not_found")
    with person.http(site.webs[1].url) as http:
        body = {"model": "none", "messages": [{"role": "user", "content": "x"}]}
        assert http.post("/v1/chat/completions", json=body).status_code == 404
    assert scrape(site.webs[0].url).sum("chatsite_refusals_total", code="model_not_found") == before + 1


def test_strangers_are_told_there_is_nothing(site: Site, person: Person) -> None:
    url = f"{site.webs[0].url}/metrics"
    for headers in (
        {},
        {"Authorization": "Bearer no"},
        person.headers,
        person.cookie,
        {"Authorization": METRICS_TOKEN},
    ):
        answer = httpx.get(url, headers=headers, timeout=30)
        assert answer.status_code == 404 and "chatsite_" not in answer.text
    assert httpx.post(url, headers={"Authorization": f"Bearer {METRICS_TOKEN}"}, timeout=30).status_code in (403, 405)
    User.objects.filter(pk=person.user.pk).update(is_staff=True)
    answer = httpx.get(url, headers=person.cookie, timeout=30)
    assert answer.status_code == 200 and "chatsite_http_requests_total" in answer.text


def test_without_a_token_only_staff_may_look(db: None, person: Person, settings: object) -> None:
    settings.METRICS_TOKEN = ""  # type: ignore[attr-defined]
    for token in ("", "Bearer ", "Bearer None"):
        assert Client().get("/metrics", headers={"Authorization": token}).status_code == 404


def test_labels_stay_few_whatever_is_asked_for(site: Site, person: Person) -> None:
    with person.http(site.webs[0].url) as http:
        for path in ("/v1/", "/api/v1/", "/ws/", "/", "/c/", "/%0a", "/accounts/password/"):
            for _ in range(3):
                http.get(f"{path}{uuid.uuid4()}", headers={"X-Request-ID": uuid.uuid4().hex})
        for model in (uuid.uuid4().hex, "x" * 100):
            body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
            http.post("/v1/chat/completions", json=body)
    labels = scrape(site.webs[0].url).labels()
    assert {name for name, _ in labels} <= {
        "route", "status", "transport", "api", "kind", "code", "hint", "model", "finish_reason", "direction", "reason",
        "band", "state", "worker", "store", "how",
    }  # fmt: skip
    assert not [label for label in labels if re.search(r"[0-9a-f]{8}-|[0-9a-f]{16}|x{9}", label[1])]
    routes = {value for name, value in labels if name == "route"}
    assert routes <= {"completions", "v1", "api", "stream", "websocket", "pages", "ops", "accounts", "static", "admin"}
    assert {value for name, value in labels if name == "model"} == {"echo"}


@pytest.mark.parametrize(
    ("code", "label"),
    [
        ("tokens_per_day_used_up", "tokens_used_up"),
        ("requests_per_3_hours_used_up", "requests_used_up"),
        ("tokens_per_7_days_too_small", "tokens_too_small"),
        ("queue_full", "queue_full"),
    ],
)
def test_windows_of_any_length_share_a_label(code: str, label: str) -> None:
    def count() -> float:
        return float(refusals.labels(label)._value.get())

    before = count()
    json.dumps(Refusal(code, "no").body())
    assert count() == before + 1


def test_gaps_are_sampled() -> None:
    gaps = metrics.Gaps()
    for _ in range(10_000):
        gaps.add(0.03)
    gaps.observe("sampled")
    gaps.observe("sampled")
    child = metrics.inter_token.labels("sampled")
    assert child._sum.get() == pytest.approx(metrics.GAPS_KEPT * 0.03)
