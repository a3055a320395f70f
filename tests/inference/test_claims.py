"""Claiming, renewing, handing back and reaping: conditional updates, one winner, nothing lost."""

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import OperationalError
from django.db.models.functions import Now
from django.utils import timezone

from billing.models import LedgerEntry
from inference import claims, tasks
from inference.claims import Claimed, Progress
from inference.echo_engine import EchoEngine
from inference.endings import Ending
from inference.engine import Load
from inference.host import EngineHost
from inference.models import Generation, Served, Worker
from inference.operations import submit
from inference.scheduling import Capacity, Running
from inference.unbroken import Unbroken

pytestmark = pytest.mark.django_db
Status = Generation.Status
SPACE = Capacity(slots=4, kv_tokens=100_000)


def make_worker(model, name="gpu1"):
    worker = Worker(name=name, model=model, host="here", pid=1, slots=4, state="READY", lease_until=timezone.now())
    claims.register(worker)
    return worker


def make_generation(user, model, **facts):
    values = {"prompt": Generation.pack([1, 2, 3]), "prompt_tokens": 3, "grant": 10, "asked": 10} | facts
    return Generation.objects.create(id=uuid4(), user=user, organization_id=user.organization_id, model=model, **values)


def claim(worker, running=()):
    taken = claims.claim(worker, running, SPACE, frozenset(), 0).generations
    return taken[0] if taken else None


def lapse(generation):
    Generation.objects.filter(pk=generation.pk).update(lease_until=Now() - timedelta(seconds=1))


FINISHED = Ending("FINISHED", "stop", text="hello", completion_tokens=5, frames=2)


def test_a_claim_takes_the_oldest_and_gives_it_a_lease(user, echo_model):
    worker, first = make_worker(echo_model), make_generation(user, echo_model)
    make_generation(user, echo_model)
    taken = claim(worker)
    assert (taken.pk, taken.status, taken.worker_id, taken.prompt_ids) == (first.pk, "RUNNING", worker.pk, (1, 2, 3))
    assert taken.lease_until > timezone.now()
    assert taken.started_at is not None


def test_two_workers_never_get_the_same_generation(user, echo_model):
    make_generation(user, echo_model)
    assert claim(make_worker(echo_model)) is not None
    assert claim(make_worker(echo_model, "gpu2")) is None


def test_a_flagged_generation_is_never_claimed(user, echo_model):
    make_generation(user, echo_model, cancel_requested=True)
    assert claim(make_worker(echo_model)) is None


def test_another_models_generation_is_left_alone(user, echo_model):
    make_generation(user, echo_model)
    other = type(echo_model).objects.create(name="other", context_length=10, max_output_tokens=10)
    assert claim(make_worker(other)) is None


def test_a_finish_writes_row_ledger_and_served_tokens_once(user, echo_model):
    make_generation(user, echo_model)
    taken = claim(make_worker(echo_model))
    assert claims.finish(taken, FINISHED)
    row = Generation.objects.get(pk=taken.pk)
    assert (row.status, row.finish_reason, row.completion_tokens, row.text) == ("FINISHED", "stop", 5, "hello")
    entry = LedgerEntry.objects.get(generation_id=taken.pk)
    assert (entry.prompt_tokens, entry.completion_tokens, entry.user_id) == (3, 5, user.pk)
    assert Served.objects.get(user_id=user.pk, model=echo_model).tokens == 3 + 2 * 5
    assert not claims.finish(taken, FINISHED)
    assert LedgerEntry.objects.filter(generation_id=taken.pk).count() == 1


def test_money_is_booked_at_the_models_prices(user, echo_model):
    type(echo_model).objects.filter(pk=echo_model.pk).update(
        price_prompt_micro=2_000_000, price_completion_micro=10_000_000
    )
    make_generation(user, echo_model)
    claims.finish(claim(make_worker(echo_model)), FINISHED)
    assert LedgerEntry.objects.get(user_id=user.pk).cost_micro == 3 * 2 + 5 * 10


def test_the_finish_of_a_fenced_attempt_is_refused(user, echo_model):
    make_generation(user, echo_model)
    old, new = make_worker(echo_model), make_worker(echo_model, "gpu2")
    first = claim(old)
    lapse(first)
    assert claims.reap() == 1
    second = claim(new)
    assert (second.pk, second.attempt, second.deaths) == (first.pk, 2, 1)
    assert not claims.finish(first, FINISHED)
    assert claims.finish(second, FINISHED)


def test_a_renewal_keeps_what_is_ours_and_tells_what_is_to_be_cancelled(user, stranger, echo_model):
    worker = make_worker(echo_model)
    make_generation(user, echo_model)
    make_generation(stranger, echo_model)
    kept, lost = claim(worker), claim(worker)
    Generation.objects.filter(pk=kept.pk).update(cancel_requested=True)
    Generation.objects.filter(pk=lost.pk).update(attempt=2)
    steps = {kept.pk: Progress(1, 7, 2), lost.pk: Progress(1, 1, 0)}
    renewed = claims.renew(worker, steps, Load(running=2, kv_usage=0.5))
    assert (renewed.kept, renewed.cancelled) == ({kept.pk}, {kept.pk})
    row = Generation.objects.get(pk=kept.pk)
    assert (row.completion_tokens, row.cached_tokens) == (7, 2)
    worker.refresh_from_db()
    assert (worker.running, worker.kv_usage) == (2, 0.5)


def test_only_lapsed_leases_are_reaped(user, echo_model):
    make_generation(user, echo_model)
    claim(make_worker(echo_model))
    assert claims.reap() == 0


def test_without_hosts_rows_are_taken_once_there_was_none_for_a_lease(user, echo_model, settings, monkeypatch):
    """After an outage of the database every lease has lapsed, and those that live have not yet said so."""
    clock = iter([100.0, 101.0, 102.0, 102.0 + settings.LEASE_S - 0.1, 102.0 + settings.LEASE_S])
    monkeypatch.setattr(tasks, "monotonic", lambda: next(clock))
    monkeypatch.setattr(tasks, "_hostless", Unbroken(10.0))
    worker = make_worker(echo_model)
    make_generation(user, echo_model)
    lapse(claim(worker))

    def looks(lease_s):
        Worker.objects.update(lease_until=Now() + timedelta(seconds=lease_s))
        return tasks.reap_without_hosts()

    assert [looks(lease_s) for lease_s in (-1, 60, -1, -1, -1)] == [0, 0, 0, 0, 1]


def test_after_an_outage_longer_than_their_patience_those_who_wait_go_on_waiting(
    user, echo_model, settings, monkeypatch
):
    """The workers live, but have not yet renewed leases that lapsed long ago; likewise they are not purged."""
    clock = iter([100.0, 100.0, 107.0, 107.0, 114.0, 114.0])
    monkeypatch.setattr(tasks, "monotonic", lambda: next(clock))
    monkeypatch.setattr(tasks, "_reachable", Unbroken(10.0))
    make_worker(echo_model)
    make_generation(user, echo_model, created_at=timezone.now() - timedelta(hours=2))

    def looks(lease):
        Worker.objects.update(lease_until=Now() + lease)
        ended = tasks.expire_unserved()
        tasks.purge()
        return ended, Worker.objects.count()

    away, back = timedelta(hours=-2), timedelta(seconds=3)
    assert [looks(lease) for lease in (away, back, away)] == [(0, 1), (0, 1), (1, 0)]


def test_a_worker_whose_row_was_deleted_makes_itself_known_again(user, echo_model):
    worker = make_worker(echo_model)
    Worker.objects.all().delete()
    claims.renew(worker, {}, Load(0))
    assert Worker.objects.get().pk == worker.pk
    make_generation(user, echo_model)
    assert claim(worker) is not None


def test_a_reaped_generation_that_was_to_be_cancelled_ends_as_cancelled(user, echo_model):
    make_generation(user, echo_model)
    taken = claim(make_worker(echo_model))
    Generation.objects.filter(pk=taken.pk).update(cancel_requested=True)
    lapse(taken)
    claims.reap()
    row = Generation.objects.get(pk=taken.pk)
    assert (row.status, row.finish_reason) == ("CANCELLED", "cancelled")
    assert LedgerEntry.objects.filter(generation_id=taken.pk).exists()


def test_a_worker_that_was_only_late_gives_the_death_back(user, echo_model):
    make_generation(user, echo_model)
    taken = claim(make_worker(echo_model))
    lapse(taken)
    claims.reap()
    claims.refund_deaths({taken.pk: Progress(taken.attempt, 3, 0)})
    assert Generation.objects.get(pk=taken.pk).deaths == 0
    claims.refund_deaths({taken.pk: Progress(taken.attempt, 3, 0)})
    assert Generation.objects.get(pk=taken.pk).deaths == 0


def test_a_generation_whose_workers_died_three_times_fails_with_its_ledger_entry(user, echo_model, settings):
    make_generation(user, echo_model)
    worker = make_worker(echo_model)
    for _ in range(settings.MAX_DEATHS):
        taken = claim(worker)
        lapse(taken)
        claims.reap()
    row = Generation.objects.get(pk=taken.pk)
    assert (row.status, row.finish_reason, row.error_code) == ("FAILED", "error", "worker_died")
    assert LedgerEntry.objects.filter(generation_id=taken.pk).count() == 1
    assert claim(worker) is None


def test_who_has_seen_two_workers_die_runs_alone(user, stranger, echo_model):
    """Their third death would be their last: who was only aboard with what kills workers must not share it."""
    worker = make_worker(echo_model)
    make_generation(user, echo_model)
    make_generation(stranger, echo_model)
    for is_suspect in (False, True):
        aboard = [claim(worker), claim(worker)]
        for taken in aboard:
            lapse(taken)
        assert claims.reap() == 2
        assert set(Generation.objects.values_list("is_suspect", flat=True)) == {is_suspect}
    alone = claim(worker)
    claims.hand_back(worker, [alone])  # a worker that leaves in order says nothing for it
    assert Generation.objects.get(pk=alone.pk).is_suspect


def test_a_renewal_tells_how_long_the_log_is(user, echo_model):
    make_generation(user, echo_model)
    worker = make_worker(echo_model)
    taken = claim(worker)
    claims.renew(worker, {taken.pk: Progress(1, 7, 0, 4)}, Load(1))
    lapse(taken)
    claims.reap()
    assert claim(worker).frames == 4


def test_what_a_draining_worker_hands_back_goes_on_at_once_without_a_death(user, echo_model):
    make_generation(user, echo_model)
    taken = claim(make_worker(echo_model))
    claims.hand_back(taken.worker, [taken])
    again = claim(make_worker(echo_model, "gpu2"))
    assert (again.attempt, again.deaths, again.is_suspect) == (2, 0, False)


def test_a_claim_whose_answer_was_lost_is_handed_back_without_a_death(user, echo_model, monkeypatch):
    """The database died between commit and answer: the row is this worker's, and nobody here knows of it."""
    lost, known = make_generation(user, echo_model), make_generation(user, echo_model)
    host = EngineHost(EchoEngine(slots=2), model=echo_model.name, name="gpu1")
    claims.register(host.worker)
    monkeypatch.setattr(host, "may_start", lambda: True)
    monkeypatch.setattr("inference.slots.close_old_connections", lambda: None)  # this test is one transaction
    answered = claims.claim

    def unheard(*arguments):
        answered(*arguments)
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(claims, "claim", unheard)
    assert host.slots.take(may_fill=False) == (None, False)
    monkeypatch.setattr(claims, "claim", answered)
    assert host.slots.take(may_fill=False)[0].pk == known.pk
    assert Generation.objects.get(pk=lost.pk).status == Status.RUNNING
    host.slots.return_unheard()
    row = Generation.objects.get(pk=lost.pk)
    assert (row.status, row.attempt, row.deaths) == (Status.WAITING, 2, 0)
    assert Generation.objects.get(pk=known.pk).status == Status.RUNNING
    Generation.objects.filter(pk=lost.pk).update(status=Status.RUNNING, worker=host.worker)
    host.slots.return_unheard()  # costs nothing while no claim has failed
    assert Generation.objects.get(pk=lost.pk).status == Status.RUNNING


def test_of_a_dead_engines_generations_each_runs_alone_and_only_a_lone_one_counts_the_death(user, stranger, echo_model):
    worker = make_worker(echo_model)
    make_generation(user, echo_model)
    make_generation(stranger, echo_model)
    aboard = [claim(worker), claim(worker)]
    claims.hand_back(worker, aboard, engine_died=True)
    assert set(Generation.objects.values_list("is_suspect", "deaths")) == {(True, 0)}
    alone = claim(worker)
    claims.hand_back(worker, [alone], engine_died=True)
    assert Generation.objects.get(pk=alone.pk).deaths == 1


def test_an_ending_that_cannot_be_stored_is_booked_as_an_internal_error(user, echo_model):
    make_generation(user, echo_model)
    taken = claim(make_worker(echo_model))
    assert claims.finish(taken, replace(FINISHED, text="NUL \0 is refused by PostgreSQL"))
    row = Generation.objects.get(pk=taken.pk)
    assert (row.status, row.error_code, row.completion_tokens) == ("FAILED", "internal", 5)
    assert LedgerEntry.objects.get(generation_id=taken.pk).finish_reason == "error"


def counter(user):
    return Served.objects.get(user_id=user.pk).tokens


def test_service_is_charged_as_it_happens(user, echo_model):
    worker = make_worker(echo_model)
    make_generation(user, echo_model, weight=2.0)
    taken = claim(worker)
    assert counter(user) == 3 / 2
    claims.renew(worker, {taken.pk: Progress(1, 4, 0, 3)}, Load(1))
    assert counter(user) == (3 + 2 * 4) / 2
    claims.renew(worker, {taken.pk: Progress(1, 4, 0)}, Load(1))
    claims.finish(taken, FINISHED)
    assert counter(user) == (3 + 2 * 5) / 2


def test_a_later_attempt_is_charged_only_for_what_is_new(user, echo_model):
    old, new = make_worker(echo_model), make_worker(echo_model, "gpu2")
    make_generation(user, echo_model)
    first = claim(old)
    claims.renew(old, {first.pk: Progress(1, 4, 0)}, Load(1))
    lapse(first)
    claims.reap()
    claims.finish(claim(new), FINISHED)
    assert counter(user) == 3 + 2 * 5


def test_what_another_worker_took_over_is_not_charged_twice(user, echo_model):
    old = make_worker(echo_model)
    make_generation(user, echo_model)
    first = claim(old)
    lapse(first)
    claims.reap()
    claims.renew(old, {first.pk: Progress(1, 4, 0)}, Load(1))
    assert counter(user) == 3


def test_who_comes_back_is_lifted_to_the_least_that_waits(user, stranger, echo_model):
    worker = make_worker(echo_model)
    Served.objects.create(user_id=stranger.pk, model=echo_model, tokens=500)
    make_generation(stranger, echo_model)
    claim(worker)
    back = make_generation(user, echo_model)
    Generation.objects.filter(pk=back.pk).update(floor=0)
    submitted = Generation(
        user=user, organization_id=user.organization_id, model=echo_model, prompt_tokens=3, grant=10, band=0
    )
    submit(submitted)
    submitted.refresh_from_db()
    assert submitted.floor == 500
    Generation.objects.filter(pk=back.pk).delete()
    assert claim(worker).pk == submitted.pk
    assert counter(user) == 503


def test_counters_of_two_bands_are_two(user, echo_model):
    worker = make_worker(echo_model)
    make_generation(user, echo_model)
    make_generation(user, echo_model, band=2)
    assert [claim(worker).band, claim(worker).band] == [2, 0]
    assert set(Served.objects.values_list("band", "tokens")) == {(0, 3), (2, 3)}


def test_a_claim_says_how_many_more_would_start(user, stranger, echo_model):
    worker = make_worker(echo_model)
    for someone in (user, stranger):
        make_generation(someone, echo_model)
    first = claims.claim(worker, [], SPACE, frozenset(), 0)
    assert (first.more, first.is_refused) == (1, False)
    full = [Running(user.pk, 0, 10)] * SPACE.slots
    assert claims.claim(worker, full, SPACE, frozenset(), 0) == Claimed([], 0, is_refused=True)


def test_what_waited_longer_than_its_plan_allows_ends_with_an_error(user, echo_model):
    past, future = timezone.now() - timedelta(seconds=1), timezone.now() + timedelta(seconds=60)
    late = make_generation(user, echo_model, wait_until=past)
    moved = make_generation(user, echo_model, wait_until=past, started_at=past)  # of a dead worker: it goes on
    patient = [make_generation(user, echo_model, wait_until=future), make_generation(user, echo_model)]
    assert claims.end_overdue() == 1
    late.refresh_from_db()
    assert (late.status, late.error_code, late.finish_reason) == ("FAILED", "waited_too_long", "error")
    assert LedgerEntry.objects.get(generation_id=late.pk).prompt_tokens == 0
    assert Generation.objects.filter(pk__in=[moved.pk, *(each.pk for each in patient)], status="WAITING").count() == 3


def test_several_are_claimed_at_once_as_if_one_after_the_other(user, stranger, echo_model):
    worker = make_worker(echo_model)
    Served.objects.create(user_id=stranger.pk, model=echo_model, tokens=50)
    make_generation(user, echo_model)
    make_generation(stranger, echo_model)
    paid = make_generation(user, echo_model, band=1)
    other = make_generation(user, echo_model)
    found = claims.claim(worker, [], SPACE, frozenset(), 0, 3)
    assert len(found.generations) == 3 and other.pk not in {row.pk for row in found.generations}
    assert paid.pk in {row.pk for row in found.generations}
    assert {row.worker_id for row in found.generations} == {worker.pk}
    assert set(Served.objects.values_list("band", "tokens")) == {(0, 3), (0, 53), (1, 3)}
    assert claims.claim(worker, [], SPACE, frozenset(), 0, 3).generations == [other]
