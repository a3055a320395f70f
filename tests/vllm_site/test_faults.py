"""Real answers through faults: three streams at once, on two workers; what was read is what the row says, once."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import redis
from django.db import connection

from billing.models import LedgerEntry
from conversations.models import Message
from inference.models import Generation
from tests.faults.streams import Reading, ask, read_to_end
from tests.people import Person
from tests.site import Process, Site, stopped, wait_until
from tests.vllm_site.model import MODEL

pytestmark = [pytest.mark.vllm, pytest.mark.faults]
STREAMS, TOKENS = 3, 100


def busiest(site: Site, person: Person) -> Process:
    """The worker with most of this person's answers."""
    running = Generation.objects.filter(user=person.user, status="RUNNING").values_list("worker__pid", flat=True)
    pids = list(running)
    return max(site.workers, key=lambda worker: pids.count(worker.pid))


def valkey_loses_everything(site: Site, person: Person) -> None:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        client.flushall()
        client.client_kill_filter(_type="normal", skipme=True)
        client.client_kill_filter(_type="pubsub")


def postgres_ends_all_sessions(site: Site, person: Person) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    connection.close()
    connection.close_pool()  # this process's are ended, too


def an_engine_is_killed(site: Site, person: Person) -> None:
    worker = busiest(site, person)
    engine = site.row(worker).engine_pid
    assert engine in {child.pid for child in psutil.Process(worker.pid).children(recursive=True)}
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: not worker.is_alive, "its worker leaves with it")
    site.restart(worker)


def a_worker_is_frozen_beyond_its_lease(site: Site, person: Person) -> None:
    worker = busiest(site, person)
    mine = Generation.objects.filter(user=person.user, worker__pid=worker.pid, status="RUNNING")
    assert mine.exists()
    with stopped(worker.pid):
        wait_until(lambda: not mine.exists(), "others have taken over")
        time.sleep(1)  # it thaws while they write


@pytest.mark.parametrize(
    "harm",
    [
        valkey_loses_everything,
        postgres_ends_all_sessions,
        an_engine_is_killed,
        a_worker_is_frozen_beyond_its_lease,
    ],
)
def test_real_answers_go_on(site: Site, person: Person, harm: Callable[[Site, Person], None]) -> None:
    def read(number: int) -> Reading:
        content = f"Tell me a long story about {number} rivers."
        return read_to_end(ask(person, site.webs[0].url, content, model=MODEL, max_tokens=TOKENS))

    mine = Generation.objects.filter(user=person.user)
    with ThreadPoolExecutor(STREAMS) as pool:
        readings = [pool.submit(read, number) for number in range(STREAMS)]
        wait_until(lambda: mine.filter(completion_tokens__gt=5).count() == STREAMS, "all are being written", 60)
        harm(site, person)
        read_texts = sorted(reading.result(90).text for reading in readings)
    rows = list(mine)
    assert {row.status for row in rows} == {"FINISHED"}
    assert read_texts == sorted(row.text for row in rows)
    assert read_texts == sorted(Message.objects.filter(generation__in=rows).values_list("content", flat=True))
    for row in rows:
        assert LedgerEntry.objects.get(generation_id=row.pk).completion_tokens == row.completion_tokens <= TOKENS
