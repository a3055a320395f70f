"""Workers die, freeze and leave in mid-sentence; the reader gets every token once, and the books are right.

Killed workers, and those told to stop that hand back, are in tests/town.
"""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from billing.models import LedgerEntry
from inference.models import Generation, Worker
from tests.faults.streams import ask, read_to_end
from tests.site import wait_until

pytestmark = pytest.mark.faults
ANSWER = "[[n=120 itl=30 ttft=20]]"


def worker_of(site, person):
    pid = person.newest().worker.pid
    return next(worker for worker in site.workers if worker.pid == pid)


def interrupt(site, person, break_it, after=20):
    """Stream an answer and, after some tokens, do something to the worker that writes it."""
    readings = ask(person, site.webs[0].url, ANSWER)
    for reading in readings:
        if len(reading.numbers) >= after:
            break_it(worker_of(site, person))
            break
    return read_to_end(readings)


def assert_whole(reading, person):
    assert reading.numbers == list(range(120))
    assert reading.last["finish_reason"] == "stop"
    entry = LedgerEntry.objects.get(generation_id=person.newest().pk)
    assert (entry.prompt_tokens, entry.completion_tokens) == (person.newest().prompt_tokens, 120)
    assert person.newest().message.content == reading.text


def test_a_worker_told_to_stop_lets_a_short_answer_end(make_site, person):
    site = make_site(webs=1, workers=2, environment={"DRAIN": "20"})
    reading = interrupt(site, person, lambda worker: site.kill(worker, signal.SIGTERM))
    assert_whole(reading, person)
    assert person.newest().attempt == 1


def test_a_frozen_worker_is_fenced_when_it_thaws(make_site, person):
    site = make_site(webs=1, workers=2)
    frozen = []

    def freeze(worker):
        site.kill(worker, signal.SIGSTOP)
        frozen.append(worker)

    reading = interrupt(site, person, freeze)
    site.kill(frozen[0], signal.SIGCONT)
    assert_whole(reading, person)
    wait_until(lambda: site.row(frozen[0]).running == 0, "the thawed worker runs nothing")
    assert LedgerEntry.objects.filter(user_id=person.user.pk).count() == 1


def restart_when_it_left(site):
    wait_until(lambda: not site.workers[0].is_alive, "the worker left", 30)
    assert site.workers[0].popen.returncode == 75
    site.workers[0].start()


def test_a_dead_engine_takes_its_worker_along_and_the_restarted_one_goes_on(make_site, person):
    site = make_site(webs=1, workers=1)
    readings = ask(person, site.webs[0].url, "[[n=120 itl=10 die=20]]")
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(read_to_end, readings)
        restart_when_it_left(site)
        assert_whole(whole.result(30), person)


def test_an_answer_that_kills_every_engine_is_given_up_after_three_and_others_go_on(make_site, person, stranger):
    site = make_site(webs=1, workers=1)
    poison = ask(person, site.webs[0].url, "[[n=200 itl=20 die=20 always=1]]")
    innocent = ask(stranger, site.webs[0].url, "[[n=120 itl=10]]")
    with ThreadPoolExecutor(2) as pool:
        given_up, whole = pool.submit(read_to_end, poison), pool.submit(read_to_end, innocent)
        while not (given_up.done() and whole.done()):
            if not site.workers[0].is_alive:
                restart_when_it_left(site)
        reading = given_up.result()
        assert_whole(whole.result(), stranger)
    assert reading.last["code"] == "worker_died"
    assert reading.numbers == list(range(len(reading.numbers)))
    assert LedgerEntry.objects.get(generation_id=person.newest().pk).completion_tokens == len(reading.numbers)


def test_without_a_worker_the_reader_is_told_and_the_request_ends(make_site, person):
    site = make_site(webs=1, workers=0)
    from django.test import override_settings

    from inference.tasks import expire_unserved

    readings = ask(person, site.webs[0].url, "hello")
    for reading in readings:
        if reading.last.get("workers") == "none":
            break
    with override_settings(WAIT_WITHOUT_WORKER_S=0):
        wait_until(lambda: expire_unserved() == 1, "it is given up")
    assert read_to_end(readings).last["code"] == "no_worker"


def test_32_slots_work_with_a_database_pool_of_4(make_site, person):
    site = make_site(webs=1, workers=1, slots=32, environment={"DATABASE_POOL": "4"})

    def one(_):
        return read_to_end(ask(person, site.webs[0].url, "[[n=40 itl=25 ttft=100]]")).numbers

    with ThreadPoolExecutor(32) as pool:
        assert all(numbers == list(range(40)) for numbers in pool.map(one, range(48)))
    assert Worker.objects.latest("started_at").slots == 32
    assert not Generation.objects.filter(user=person.user).exclude(status="FINISHED").exists()
