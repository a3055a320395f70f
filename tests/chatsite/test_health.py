"""/healthz and /readyz: alive, and able to answer a prompt."""

import json
import time
from collections.abc import Iterator
from datetime import timedelta

import psutil
import pytest
import redis
from django.conf import settings as current
from django.test import AsyncRequestFactory
from django.utils import timezone

from chatsite.health import clients, healthz, readyz
from inference.models import ServedModel, Worker


async def ready() -> tuple[int, dict[str, object]]:
    response = await readyz(AsyncRequestFactory().get("/readyz"))
    return response.status_code, json.loads(response.content)


@pytest.fixture
def worker(transactional_db: None) -> Worker:
    model = ServedModel.objects.create(name="health", engine="echo", context_length=100, max_output_tokens=10)
    until = timezone.now() + timedelta(seconds=60)
    return Worker.objects.create(name="w", model=model, host="h", pid=1, state="READY", lease_until=until)


async def test_alive_without_any_store() -> None:
    assert (await healthz(AsyncRequestFactory().get("/healthz"))).status_code == 200


async def test_ready_with_a_ready_worker(worker: Worker) -> None:
    assert await ready() == (200, {"ready": True, "database": "ok", "valkey": "ok", "worker": "ready"})


@pytest.mark.parametrize("change", [{"state": "STARTING"}, {"state": "DRAINING"}, {"lease_until": timezone.now()}])
async def test_not_ready_without_one(worker: Worker, change: dict[str, object]) -> None:
    await Worker.objects.filter(pk=worker.pk).aupdate(**change)
    assert await ready() == (503, {"ready": False, "database": "ok", "valkey": "ok", "worker": "none"})


@pytest.fixture
def stopped_valkey() -> Iterator[None]:
    with redis.Redis.from_url(current.REDIS_URLS[0]) as client:
        server = psutil.Process(client.info("server")["process_id"])
    clients.cache_clear()
    server.suspend()
    yield
    server.resume()
    clients.cache_clear()


@pytest.mark.faults
async def test_says_within_seconds_that_valkey_hangs(worker: Worker, stopped_valkey: None) -> None:
    began = time.monotonic()
    status, body = await ready()
    assert (status, body["valkey"], body["database"]) == (503, "unreachable", "ok")
    assert time.monotonic() - began < 3
