"""/healthz and /readyz of workers, side worker and beat, through their lives."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
import redis
from django.conf import settings as current

from chatsite.stores import free_port
from tests.faults.streams import ask, read_to_end
from tests.observability.scrape import Scrape
from tests.people import Person
from tests.site import METRICS_TOKEN, Process, Site, wait_until

CELERY = [sys.executable, "-m", "celery", "--quiet", "-A", "chatsite"]


class Probe:
    """Asks one process's endpoint."""

    def __init__(self) -> None:
        self.port = free_port()
        self.environment = {"PROBE_PORT": str(self.port)}

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", headers=headers, timeout=10)

    def says(self, status: int, **facts: object) -> Callable[[], bool]:
        def holds() -> bool:
            try:
                answer = self.get("/readyz")
            except httpx.TransportError:
                return False
            return answer.status_code == status and facts.items() <= answer.json().items()

        return holds


@pytest.fixture
def probe() -> Probe:
    return Probe()


def test_a_worker_loads_serves_and_drains(new_site: Callable[..., Site], person: Person, probe: Probe) -> None:
    environment = probe.environment | {"ENGINE_OPTIONS": '{"start_s": 3}', "DRAIN": "20"}
    site = new_site(webs=1, workers=1, environment=environment)
    wait_until(probe.says(200, ready=True, state="ready", database="ok", valkey="ok"), "it is ready")
    readings = ask(person, site.webs[0].url, "[[n=100 itl=20 ttft=10]]")
    next(readings)
    worker = site.workers[0]
    worker.popen.send_signal(signal.SIGTERM)
    wait_until(probe.says(503, ready=False, state="draining"), "it drains")
    assert probe.get("/healthz").status_code == 200
    assert read_to_end(readings).numbers == list(range(100))  # which it may end
    wait_until(lambda: not worker.is_alive, "it has left")

    worker.start()
    wait_until(probe.says(503, ready=False, state="starting", database="ok"), "it loads", 60)
    assert probe.get("/healthz").status_code == 200
    wait_until(probe.says(200, ready=True), "it is ready", 60)
    assert probe.get("/healthz").json() == {"consumer": "turns", "engine": "turns", "keeper": "turns"}


def test_a_web_process_is_asked_by_its_address_without_tls(new_site: Callable[..., Site]) -> None:
    """As a kubelet and Prometheus ask: the Host header is a pod's address, and no proxy is in front."""
    web = new_site(webs=1, workers=1, environment={"HTTPS": "1", "ALLOWED_HOSTS": "chat.example.org"}).webs[0]
    token = {"Authorization": f"Bearer {METRICS_TOKEN}"}
    with httpx.Client(base_url=web.url, headers={"Host": "10.1.2.3:8000"}, timeout=30) as http:
        assert http.get("/healthz").text == "ok"
        assert http.get("/readyz").json()["ready"] is True
        assert http.get("/metrics", headers=token).status_code == 200
        assert http.get("/api/v1/conversations", headers=token).status_code == 400  # a page is asked for by its name


def test_a_workers_metrics_need_the_token_and_nothing_else_is_there(
    new_site: Callable[..., Site], probe: Probe
) -> None:
    new_site(webs=0, workers=1, environment=probe.environment)
    assert probe.get("/metrics").status_code == 404
    answer = probe.get("/metrics", Authorization=f"Bearer {METRICS_TOKEN}")
    assert answer.status_code == 200 and "chatsite_checkpoint_seconds_bucket" in answer.text
    assert probe.get("/").status_code == probe.get("/healthz/x").status_code == 404
    assert httpx.post(f"http://127.0.0.1:{probe.port}/healthz", timeout=10).status_code == 405


@pytest.fixture
def start(new_site: Callable[..., Site], tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start one more process of a site."""
    site = new_site(webs=0, workers=0)
    started: list[Process] = []

    def start(name: str, probe: Probe, *argv: str) -> Process:
        environment = site.environment | probe.environment
        process = Process(name, [*CELERY, *argv], tmp_path / f"{name}.log", environment=environment)
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.stop()


@contextmanager
def hanging_valkey() -> Iterator[None]:
    with redis.Redis.from_url(current.REDIS_URLS[0]) as client:
        server = psutil.Process(client.info("server")["process_id"])
    server.suspend()
    try:
        yield
    finally:
        server.resume()


@pytest.mark.faults
def test_a_valkey_that_hangs_costs_a_worker_its_readiness_but_no_lease(
    new_site: Callable[..., Site], probe: Probe
) -> None:
    site = new_site(webs=0, workers=1, environment=probe.environment)
    wait_until(probe.says(200, ready=True), "it is ready")
    turns = count_turns(probe)
    with hanging_valkey():
        wait_until(lambda: count_turns(probe) >= turns + 6, "six renewals", 60)
        assert probe.says(503, ready=False, valkey="unreachable", database="ok", state="ready")()
        assert probe.get("/healthz").status_code == 200
    wait_until(probe.says(200, ready=True), "it is ready again")
    text = probe.get("/metrics", Authorization=f"Bearer {METRICS_TOKEN}").text
    assert 'chatsite_hints_lost_total{hint="ticket"}' in text
    assert 'how="overdue"' not in text
    assert site.row(site.workers[0]).state == "READY"


def count_turns(probe: Probe) -> float:
    answer = probe.get("/metrics", Authorization=f"Bearer {METRICS_TOKEN}")
    return Scrape(answer.text).sum("chatsite_checkpoint_seconds_count")


@pytest.mark.faults
def test_a_side_worker_is_alive_but_not_ready_while_valkey_hangs(start: Callable[..., Process], probe: Probe) -> None:
    process = start("side", probe, "worker", "--pool", "threads", "-c", "2", "-Q", "default", "-n", "side@%h")
    wait_until(probe.says(200, ready=True, state="ready"), "it is ready", 60)
    with hanging_valkey():
        wait_until(probe.says(503, ready=False, valkey="unreachable", database="ok"), "it is not ready")
        assert probe.get("/healthz").status_code == 200
    wait_until(probe.says(200, ready=True), "it is ready again", 60)
    process.popen.send_signal(signal.SIGTERM)
    wait_until(lambda: not process.is_alive, "it has left", 30)


def test_beat_is_ready_once_it_has_sent_something(start: Callable[..., Process], probe: Probe, tmp_path: Path) -> None:
    start("beat", probe, "beat", "-s", str(tmp_path / "schedule"))
    wait_until(probe.says(200, ready=True), "it is ready", 60)
    assert probe.get("/healthz").json() == {"scheduler": "turns"}


def test_a_taken_port_is_one_clear_line(start: Callable[..., Process], probe: Probe, tmp_path: Path) -> None:
    start("beat", probe, "beat", "-s", str(tmp_path / "schedule"))
    wait_until(probe.says(200), "it is ready", 60)
    second = start("beat2", probe, "beat", "-s", str(tmp_path / "schedule2"))
    wait_until(lambda: not second.is_alive, "it ends", 60)
    said = second.log.read_text().strip()
    assert f"Cannot listen on 127.0.0.1:{probe.port} (PROBE_PORT)" in said and "Traceback" not in said
