"""Processes die, freeze and leave under 50 streams and three of vLLM: nobody loses or repeats a token, and nothing is
left behind."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import redis

from inference.models import Generation
from tests.billing.limits import used
from tests.site import Process, stopped, wait_until
from tests.town.crowd import Crowd
from tests.town.town import Town

pytestmark = pytest.mark.faults


VICTIMS: dict[str, Callable[[Town], Process]] = {
    "web": lambda town: town.site.webs[0],
    "echo worker": lambda town: town.site.workers[0],
    "vLLM worker": Town.busiest,
}
WORKERS = ["echo worker", "vLLM worker"]


def under_way(town: Town, **shape: int) -> Crowd:
    crowd = town.people(**shape)
    crowd.start()
    crowd.wait_for_tokens(20)
    return crowd


@pytest.mark.parametrize("kind", VICTIMS)
def test_a_killed_process(town: Town, kind: str) -> None:
    """Cases 31 and 32."""
    crowd = under_way(town)
    town.site.kill(VICTIMS[kind](town))
    town.restart_the_dead()
    crowd.join()
    town.must_be_whole(crowd)
    if kind in WORKERS:
        moved = [told for told in crowd.long if "status" in told.kinds]
        assert {told.is_real for told in moved} == {kind == "vLLM worker"}
        rows = Generation.objects.filter(pk__in=[told.generation for told in moved])
        assert set(rows.values_list("attempt", "deaths")) == {(2, 1)}


def test_side_worker_and_beat_are_killed(town: Town) -> None:
    crowd = under_way(town)
    for process in town.site.side:
        town.site.kill(process)
    town.restart_the_dead()
    crowd.join()
    town.must_be_whole(crowd)


def test_an_engine_is_killed(town: Town) -> None:
    """vLLM's own process: its worker leaves with it, and the supervisor starts both again."""
    crowd = under_way(town)
    worker = town.busiest()
    engine = town.site.row(worker).engine_pid
    assert engine in {child.pid for child in psutil.Process(worker.pid).children(recursive=True)}
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: not worker.is_alive, "its worker leaves with it")
    town.restart_the_dead()
    crowd.join()
    town.must_be_whole(crowd)
    assert any("status" in told.kinds for told in crowd.long if told.is_real)


@pytest.mark.parametrize("kind", WORKERS)
def test_a_worker_told_to_stop(town: Town, kind: str) -> None:
    """Case 32: it hands back what does not end within the drain time; others go on at once."""
    crowd = under_way(town)
    town.site.kill(VICTIMS[kind](town), signal.SIGTERM)
    town.restart_the_dead()
    crowd.join()
    town.must_be_whole(crowd)
    assert not Generation.objects.filter(user=town.person.user, deaths__gt=0).exists()


@pytest.mark.parametrize("kind", WORKERS)
def test_a_frozen_worker_thawed_after_a_flush(town: Town, kind: str) -> None:
    """The fence is gone with everything else: what it still has to say must not come into any log."""
    crowd = under_way(town, n=150)
    frozen = VICTIMS[kind](town)
    with stopped(frozen.pid):
        rows = town.site.row(frozen).generations.filter(status="RUNNING")
        before = dict(rows.values_list("pk", "frames"))

        def gone_on() -> bool:
            now = Generation.objects.filter(pk__in=before, attempt=2).values_list("pk", "frames")
            return sum(frames > before[pk] for pk, frames in now) == len(before)

        wait_until(gone_on, "another worker has read their logs and gone on", 20)
        with redis.Redis.from_url(town.valkey.url) as client:
            client.flushall()
    crowd.join()
    town.must_be_whole(crowd)
    assert frozen.is_alive


def test_a_worker_and_the_logs_lost_at_once(town: Town) -> None:
    """Nobody has their text any more: those answers fail, openly, and are charged for what was said."""
    crowd = town.people(n=100)
    crowd.start()
    crowd.wait_for_tokens(30)  # in the rows as well
    doomed = town.site.row(town.site.workers[0])
    lost = {str(pk) for pk in doomed.generations.filter(status="RUNNING", frames__gt=0).values_list("pk", flat=True)}
    town.site.kill(town.site.workers[0], signal.SIGSTOP)
    with redis.Redis.from_url(town.valkey.url) as client:
        client.flushall()
    town.site.kill(town.site.workers[0], signal.SIGKILL)
    town.restart_the_dead()
    crowd.join()
    assert {told.generation for told in crowd.all if not told.is_whole} == lost
    for told in crowd.long:
        assert told.is_whole or (told.end["code"] == "interrupted" and not told.wrong)
        told.text = told.text if told.is_whole else ""  # the server has nothing of it any more
    town.must_be_settled(crowd, lost=lost)


def test_a_worker_frozen_alone_takes_its_own_rows_up_again(town: Town) -> None:
    """There is no other worker: the side worker takes its rows away, and it claims them again as the next attempt."""
    crowd = town.people(count=10, n=150, real=0)
    town.site.kill(town.site.workers[1], signal.SIGTERM)
    crowd.start()
    crowd.wait_for_tokens(20)
    only = town.site.workers[0]
    with stopped(only.pid):
        mine = Generation.objects.filter(user=town.person.user)
        wait_until(lambda: mine.filter(status="WAITING").count() >= 10, "its rows wait again", 20)
    crowd.join()
    town.must_be_whole(crowd)
    assert set(Generation.objects.filter(pk__in=[t.generation for t in crowd.long]).values_list("attempt")) == {(2,)}


def test_all_workers_down_and_up_again(town: Town) -> None:
    """Over 50 run (the rest of the slots is reserved), over 150 wait. With vLLM: everything_is_killed_in_mid_answer."""
    crowd = town.people(count=230, n=40, itl=50, real=0)
    crowd.start()
    mine = Generation.objects.filter(user=town.person.user)
    wait_until(lambda: mine.filter(status="RUNNING").count() >= 50, "50 run", 30)
    wait_until(lambda: mine.filter(status="WAITING").count() >= 100, "100 wait", 30)
    for worker in town.site.workers:
        town.site.kill(worker, signal.SIGKILL)
    town.restart_the_dead()
    crowd.join()
    town.must_be_whole(crowd)


def test_a_poisoned_request(town: Town) -> None:
    """It takes each worker down that runs it: three times, the last of them alone. Nobody else loses anything."""
    crowd = town.people(count=9, n=60, itl=20)
    poison = town.people_of(crowd, 1, n=60, itl=20, extra="exit=10 always=1")[0]
    crowd.start()
    while not poison.end:
        for worker in town.site.workers:
            if not worker.is_alive:
                worker.start()  # which may take the poison up before it says that it serves
    crowd.join()
    assert poison.end["code"] == "worker_died" and poison.numbers == list(range(len(poison.numbers)))
    assert [told for told in crowd.all if not told.is_whole] == [poison]
    town.must_be_settled(crowd)


def test_workers_whose_clocks_are_off(town: Town) -> None:
    """Leases are the database's, windows the counters' store's: nobody is taken for dead, nothing counts elsewhen."""
    library = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
    if library is None:
        pytest.skip("libfaketime is not installed (Debian package faketime)")
    faked = {"LD_PRELOAD": str(library), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with town.other_worker(0, FAKETIME="+10m", **faked), town.other_worker(1, FAKETIME="-10m", **faked):
        crowd = town.people(n=60)
        crowd.start()
        crowd.wait_for_tokens(20)
        mine = Generation.objects.filter(user=town.person.user)
        assert not mine.filter(attempt__gt=1).exists()
        town.site.kill(town.site.workers[0])  # the other one sees that by the database's clock
        crowd.join()
        assert not mine.filter(deaths__gt=1).exists()
        with redis.Redis.from_url(town.valkey.url) as client:
            client.flushall()
        assert used(town.person.user)["tokens_per_minute"] == town.booked() > 0
        town.must_be_whole(crowd)


def test_an_old_worker_beside_a_new_web_process(town: Town) -> None:
    """Neither understands the other's messages: the log and the rows carry the answers, and cancelling."""
    with town.other_worker(0, "tests.town.old_worker"):
        crowd = town.people(count=30, n=200)
        town.site.kill(town.site.workers[1])
        crowd.start()
        crowd.wait_for_tokens(1, of=0.1)  # readers see the log once a second
        stopped_one = next(told for told in crowd.long if told.numbers and not told.end)
        with town.person.http(town.urls[0]) as http:
            assert http.post(f"/api/v1/conversations/{stopped_one.chat}/cancel").status_code == 200
        crowd.join()
        assert stopped_one.end["finish_reason"] == "cancelled" and len(stopped_one.numbers) < 200
        assert [told for told in crowd.all if not told.is_whole] == [stopped_one]
        town.must_be_settled(crowd)


def test_a_worker_that_dies_at_certain_points(town: Town, tmp_path: Path) -> None:
    """One after the other; see tests.town.mortal_worker."""
    points = tmp_path / "points"
    points.write_text("claimed last-token finished")
    with town.other_worker(1, "tests.town.mortal_worker", POINTS=str(points)) as mortal:
        crowd = town.people(count=30, n=250, itl=30)
        crowd.start()
        while points.read_text():
            if not mortal.is_alive:
                town.site.restart(mortal)
        crowd.join()
        town.must_be_whole(crowd)


def test_a_worker_that_dies_while_it_hands_back(town: Town, tmp_path: Path) -> None:
    points = tmp_path / "points"
    points.write_text("handing-back")
    with town.other_worker(1, "tests.town.mortal_worker", POINTS=str(points), DRAIN="0") as mortal:
        crowd = town.people(count=60, n=60)  # more than the other one has slots for
        crowd.start()
        wait_until(lambda: town.site.row(mortal).running > 0, "it has something to hand back")
        town.site.kill(mortal, signal.SIGTERM)
        assert points.read_text() == ""
        crowd.join()
        town.must_be_whole(crowd)
