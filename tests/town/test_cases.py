"""What went wrong for others, restated; the numbers are those of the cases that these tests were written for."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from billing.models import LedgerEntry
from inference.models import Generation
from tests.faults.streams import ask, read_to_end
from tests.site import wait_until
from tests.town.town import Town

pytestmark = pytest.mark.faults


def idle(town: Town) -> bool:
    rows = [town.site.row(worker) for worker in town.site.workers]
    return all(row.running == 0 and row.kv_usage == 0 for row in rows)


def test_stop_at_another_web_process(town: Town) -> None:
    """Case 9."""
    crowd = town.people(count=10, n=1000, real=0)
    crowd.start()
    crowd.wait_for_tokens(5)
    wait_until(lambda: sum(town.site.row(worker).running for worker in town.site.workers) >= 10, "they run")
    with town.person.http(town.urls[1]) as http:  # clients follow at both
        for told in crowd.long:
            answer = http.post(f"/api/v1/conversations/{told.chat}/cancel").json()
            assert [one["id"] for one in answer["items"]] == [told.generation]
    crowd.join()
    assert {told.end["finish_reason"] for told in crowd.long} == {"cancelled"}
    wait_until(lambda: idle(town), "nothing runs on the engines")
    town.must_be_settled(crowd)


MOMENTS = {
    "before the first token": "[[n=500 itl=20 ttft=20000]]",
    "in mid-answer": "[[n=500 itl=20]]",
    "in a failover": "[[n=500 itl=20]]",
    "when it has finished": "[[n=3 itl=1]]",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_cancelling_through_everything_at_once(town: Town, moment: str) -> None:
    """Both APIs, twice each, at the same moment: it is idempotent, and ends the same everywhere."""
    town.people(count=0, real=0)
    person, url = town.person, town.urls[0]
    readings = ask(person, url, MOMENTS[moment])
    first = next(readings)
    with ThreadPoolExecutor(8) as pool:
        whole = pool.submit(read_to_end, readings)
        wait_until(lambda: person.newest().status != "WAITING", "it is started")
        row = person.newest()
        if moment == "in mid-answer":
            wait_until(lambda: person.newest().completion_tokens > 20, "it has tokens")
        elif moment == "when it has finished":
            person.wait_for_status("FINISHED")
        elif moment == "in a failover":
            wait_until(lambda: person.newest().completion_tokens > 20, "it has tokens")
            worker = next(one for one in town.site.workers if one.pid == row.worker.pid)
            town.site.kill(worker, signal.SIGKILL)
        barrier = threading.Barrier(4)

        def cancel(number: int) -> int:
            path = f"/v1/chat/completions/{row.pk}/cancel"
            if number % 2:
                path = f"/api/v1/conversations/{row.message.conversation_id}/cancel"
            with person.http(town.urls[number // 2]) as http:
                barrier.wait(10)
                return http.post(path).status_code

        assert set(pool.map(cancel, range(4))) == {200}
        reading = whole.result(30)
    wanted = "stop" if moment == "when it has finished" else "cancelled"
    row.refresh_from_db()
    entry = LedgerEntry.objects.get(generation_id=row.pk)
    assert first.kinds and reading.last["finish_reason"] == row.finish_reason == entry.finish_reason == wanted
    assert row.message.finish_reason == wanted and row.message.content == reading.text
    assert entry.completion_tokens == len(reading.numbers) < 500
    wait_until(lambda: town.restart_the_dead() or idle(town), "nothing runs on the engines")


def test_200_clients_that_cancel_in_a_loop(town: Town) -> None:
    """Case 11: a stream's client goes away, 200 times; what the engines hold returns to nothing."""
    town.people(count=0, real=0)
    person = town.person
    body = {"model": "echo", "stream": True, "messages": [{"role": "user", "content": "[[n=2000 itl=20 ttft=5]]"}]}

    clients = [person.http(url) for url in town.urls]

    def leave_early(number: int) -> None:
        http = clients[number % 2]
        with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            next(line for line in answer.iter_lines() if '"content":"t' in line)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(leave_early, range(200)))
    mine = Generation.objects.filter(user=person.user)
    wait_until(lambda: mine.filter(status="CANCELLED").count() == 200, "all are cancelled")
    wait_until(lambda: idle(town), "running counts and KV usage return to 0")
    entries = LedgerEntry.objects.filter(user_id=person.user.pk)
    assert entries.count() == 200 and all(0 < entry.completion_tokens < 2000 for entry in entries)


def test_a_generation_longer_than_the_visibility_timeout(town: Town) -> None:
    """Case 29: see tests.town.impatient_worker."""
    crowd = town.people(count=5, real=0)
    crowd.start()
    crowd.join()
    town.must_be_whole(crowd)
    rows = Generation.objects.filter(user=town.person.user)
    assert set(rows.values_list("attempt", "deaths")) == {(1, 0)}


def test_two_kills_in_a_row(town: Town) -> None:
    """Case 33, with a long prompt."""
    crowd = town.people(count=0, real=0)
    first, second = town.site.workers
    town.site.kill(second, signal.SIGTERM)
    long = town.people_of(crowd, 4, n=200, itl=40, extra="x" * 3000)
    crowd.start()
    crowd.wait_for_tokens(20)
    rows = Generation.objects.filter(pk__in=[told.generation for told in long])
    town.site.kill(first)
    town.site.restart(first)
    wait_until(lambda: rows.filter(attempt=2, status="RUNNING").count() == len(long), "all run again", 30)
    town.site.kill(first)
    town.restart_the_dead()
    crowd.join()
    town.must_be_whole(crowd)
    assert set(rows.values_list("deaths", flat=True)) == {2}


def test_emoji_across_a_failover(town: Town) -> None:
    """Case 1: each token ends in ZWJ and flag sequences, whose bytes come in different chunks."""
    town.people(count=0, real=0)
    person = town.person
    readings = ask(person, town.urls[0], "[[n=60 itl=40 zwj=1]]")
    next(reading for reading in readings if reading.text.count("🇨🇭") >= 20)
    pid = person.newest().worker.pid
    town.site.kill(next(worker for worker in town.site.workers if worker.pid == pid))
    reading = read_to_end(readings)
    tail = "👩\u200d👩\u200d👧\u200d👦🇨🇭👍🏽 "
    assert reading.text == "".join(f"t{k:05d}{tail}" for k in range(60))
    row = person.newest()
    assert (row.attempt, row.message.content) == (2, reading.text)
    entry = LedgerEntry.objects.get(generation_id=row.pk)
    assert entry.completion_tokens == row.completion_tokens == 60 * (1 + len(tail.encode()))
    town.restart_the_dead()


def test_everything_is_killed_in_mid_answer(town: Town) -> None:
    """Case 47: web processes, workers, side worker and beat. What was said goes on; nothing stays open for ever."""
    crowd = town.people(n=120)
    crowd.start()
    crowd.wait_for_tokens(20)
    for process in town.site.processes:
        town.site.kill(process, signal.SIGKILL)
    town.restart_the_dead()
    crowd.join()
    town.must_be_whole(crowd)
