"""A process and its pool of connections, when PostgreSQL comes back. Whoever finds it late is taken for dead."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from django.conf import settings
from psycopg_pool import ConnectionPool

from tests.faults.own_stores import OwnStore, open_folder, own_postgres_in
from tests.site import wait_until

pytestmark = pytest.mark.faults
SHAPE = settings.DATABASES["default"]["OPTIONS"]["pool"]
AWAY_S = 8.0  # by itself, the pool would try in seconds 7 and 15


@pytest.fixture
def own_postgres() -> Iterator[OwnStore]:
    with open_folder() as folder:
        running = own_postgres_in(folder)
        yield running
        running.kill()


@pytest.fixture
def pool(own_postgres: OwnStore) -> Iterator[ConnectionPool]:
    """As Django makes it."""
    with ConnectionPool(own_postgres.url, check=ConnectionPool.check_connection, open=True, **SHAPE) as pool:
        yield pool


def kill(server: OwnStore) -> None:
    os.killpg(server.child.pid, signal.SIGKILL)
    server.child.wait(10)


def test_after_an_outage_it_is_found_soon(own_postgres: OwnStore, pool: ConnectionPool) -> None:
    back_at: list[float] = []
    delays: list[float] = []

    def ask_until_it_is_back() -> None:
        while True:
            try:
                with pool.connection() as connection:
                    connection.execute("SELECT pg_sleep(0.02)")
            except psycopg.OperationalError:
                continue
            if back_at:
                delays.append(time.monotonic() - back_at[0])
                return

    threads = [threading.Thread(target=ask_until_it_is_back, daemon=True) for _ in range(pool.max_size)]
    for thread in threads:
        thread.start()
    wait_until(lambda: pool.get_stats()["pool_size"] == pool.max_size, "all connections are in use")
    kill(own_postgres)
    time.sleep(AWAY_S)  # that is the fault
    own_postgres.start()
    back_at.append(time.monotonic())
    for thread in threads:
        thread.join(20)
    assert len(delays) == len(threads) and max(delays) < 2, delays


def test_connections_that_a_restart_broke_are_not_tried_one_after_the_other(
    own_postgres: OwnStore, pool: ConnectionPool
) -> None:
    with ExitStack() as stack:
        for _ in range(pool.max_size):
            stack.enter_context(pool.connection())
    kill(own_postgres)
    own_postgres.start()
    began = time.monotonic()
    with pool.connection() as connection:
        connection.execute("SELECT 1")
    assert time.monotonic() - began < 2


def test_after_a_crash_it_ends_and_is_started_anew(own_postgres: OwnStore, pool: ConnectionPool) -> None:
    """By its supervisor; what it does by itself may go wrong for ever (chatsite.postgres)."""
    with pool.connection() as connection:
        pid = connection.info.backend_pid
    os.kill(pid, signal.SIGKILL)
    own_postgres.child.wait(10)
    own_postgres.start()
    with pool.connection() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
