"""PostgreSQL and Valkey die, hang, fill up and come back empty or with old data under 50 streams."""

import os
import shutil
import signal
import time
from collections.abc import Callable

import pytest
import redis
from django.db import InterfaceError, OperationalError, close_old_connections, connection

from inference.models import Generation
from tests.site import stopped, wait_until
from tests.town.crowd import Crowd
from tests.town.town import Town

pytestmark = pytest.mark.faults


def under_way(town: Town, **shape: int) -> Crowd:
    crowd = town.people(**shape)
    crowd.start()
    crowd.wait_for_tokens(20)
    return crowd


def use_up_the_log() -> None:
    """What PostgreSQL keeps of its log for later use is room, too."""
    try:
        with connection.cursor() as cursor:
            for _ in range(16):
                cursor.execute("SELECT pg_switch_wal()")
    except (OperationalError, InterfaceError):
        connection.close()


def more_come_until_some_are_refused(crowd: Crowd) -> None:
    """Those who are there already may all be waiting for an end that cannot be written."""
    came_at = 0.0

    def are_refused() -> bool:
        nonlocal came_at
        if time.monotonic() > came_at + 0.5:
            came_at = time.monotonic()
            crowd.join_in(1)
        return sum(told.refusals for told in crowd.short) >= 3

    wait_until(are_refused, "people are refused", 30)


def to_the_end(town: Town, crowd: Crowd) -> None:
    crowd.join()
    town.must_be_whole(crowd)


def nobody_died(town: Town) -> None:
    """No worker was taken for dead."""
    assert not Generation.objects.filter(user=town.person.user, deaths__gt=0).exists()


def flush(town: Town) -> None:
    with redis.Redis.from_url(town.valkey.url) as client:
        client.flushall()


def kill_and_restart(town: Town) -> None:
    town.valkey.kill()
    town.valkey.start()


def restart_with_nothing(town: Town) -> None:
    town.valkey.kill()
    shutil.rmtree(town.valkey.store.folder / "appendonlydir")
    town.valkey.start()


def restart_with_old_data(town: Town) -> None:
    """As from a backup: of some tokens ago."""
    data = town.valkey.store.folder / "appendonlydir"
    backup = data.with_name("backup")
    with stopped(town.valkey.child.pid):
        shutil.copytree(data, backup)
    rows = Generation.objects.filter(user=town.person.user, status="RUNNING")
    frames = dict(rows.values_list("pk", "frames"))
    wait_until(lambda: any(row.frames > frames.get(row.pk, 0) + 10 for row in rows.all()), "tokens later")
    town.valkey.kill()
    shutil.rmtree(data)
    backup.rename(data)
    town.valkey.start()


@pytest.mark.parametrize("harm", [flush, kill_and_restart, restart_with_nothing, restart_with_old_data])
def test_valkey(town: Town, harm: Callable[[Town], None]) -> None:
    crowd = under_way(town, n=120)
    harm(town)
    to_the_end(town, crowd)


def test_valkey_hangs_while_people_send(town: Town) -> None:
    """It is Celery's broker, too. Nothing that was accepted is lost; who sends gets 503 (faults/test_store_away.py)."""
    crowd = under_way(town, n=120)
    sent = len(crowd.short)
    with stopped(town.valkey.child.pid):
        time.sleep(20)
    wait_until(lambda: len(crowd.short) > sent + 5, "people are answered again", 30)
    to_the_end(town, crowd)


def test_postgres_is_away_for_10_seconds(town: Town) -> None:
    """More than three leases. Streams go on, no generation is taken for dead, and none ends before it can be booked."""
    crowd = under_way(town, n=120)
    town.postgres.stop()
    time.sleep(10)  # that is the fault
    town.start_postgres()
    to_the_end(town, crowd)
    nobody_died(town)


def test_postgres_is_killed(town: Town) -> None:
    crowd = under_way(town, n=120)
    os.killpg(town.postgres.child.pid, signal.SIGKILL)
    town.postgres.child.wait(10)
    town.start_postgres()
    to_the_end(town, crowd)
    nobody_died(town)


def test_the_databases_disk_is_full(town: Town) -> None:
    """People are refused while nothing can be written; with room again, all goes on, and everything said is booked."""
    if town.disk is None:
        pytest.skip(f"needs a small file system of its own: {town.why_no_disk}")
    town.restart_the_dead()
    close_old_connections()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM FULL")  # no room within its files either
    crowd = under_way(town, n=200)  # there are people until it is full
    town.disk.fill()
    use_up_the_log()
    try:
        more_come_until_some_are_refused(crowd)
    finally:
        town.disk.empty()
        town.restart_the_dead()  # PostgreSQL, too, gives up where it cannot even write its log
    to_the_end(town, crowd)
