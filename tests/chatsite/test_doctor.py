"""The doctor: every kind of fault, planted, is found; a healthy site is healthy."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import current_app
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone
from pytest_django import Settings

from billing import counters
from billing.models import LedgerEntry, PlanWindow, UsageDay, User
from billing.usage import roll_up
from chatsite.doctor.examination import examine, repair
from chatsite.doctor.findings import Finding, as_json, as_text, confirmed, healthy
from conversations.models import Conversation, Message
from inference import claims, leftovers
from inference.endings import Ending
from inference.models import Generation, ServedModel, Worker
from inference.tasks import purge
from tests.billing.limits import admit

pytestmark = pytest.mark.django_db
NOTHING = timedelta(0)
HOUR = timedelta(hours=1)
Make = Callable[..., Generation]


@pytest.fixture(autouse=True)
def empty_store() -> None:
    counters.store().flushall()
    leftovers.shards.cache_clear()


@pytest.fixture
def worker(echo_model: ServedModel) -> Worker:
    until = timezone.now() + HOUR
    found = Worker(name="gpu1", model=echo_model, host="here", pid=1, slots=2, kv_tokens=1000, lease_until=until)
    found.state = "READY"
    found.save()
    return found


@pytest.fixture
def make(user: User, echo_model: ServedModel, worker: Worker) -> Make:
    """A generation, an hour old; claimed by the worker unless `claimed` is False."""

    def made(*, claimed: bool = True, **facts: Any) -> Generation:
        values: dict[str, Any] = {"prompt": Generation.pack([1, 2, 3]), "prompt_tokens": 3, "grant": 10, "asked": 10}
        values |= {"created_at": timezone.now() - HOUR, "organization_id": user.organization_id}
        if claimed:
            values |= {"status": "RUNNING", "worker": worker, "started_at": timezone.now() - HOUR}
            values |= {"lease_until": timezone.now() + HOUR}
        return Generation.objects.create(id=uuid4(), user=user, model=echo_model, **values | facts)

    return made


def end(generation: Generation) -> Generation:
    ending = Ending("FINISHED", "stop", text="hello", completion_tokens=5, frames=2)
    assert claims.finish(generation, ending)
    generation.refresh_from_db()
    return generation


def problems(grace: timedelta = NOTHING) -> list[Finding]:
    """The test's Valkey keeps nothing, on purpose, which is worth a note."""
    return [one for one in examine(grace=grace) if one.is_problem]


def found(check: str) -> set[str]:
    """Subjects of a check's finding; no other problem may be named."""
    findings = {one.check: one for one in problems()}
    assert set(findings) <= {check}, as_text(list(findings.values()))
    return set(findings[check].subjects) if check in findings else set()


def test_a_healthy_site_is_healthy(make: Make) -> None:
    end(make())
    make()
    assert not problems()


OPEN_FAULTS: dict[str, dict[str, Any]] = {
    "generation-not-started": {"claimed": False},
    "generation-cancelled-waits": {"claimed": False, "cancel_requested": True},
    "lease-lapsed": {"lease_until": timezone.now() - HOUR},
    "more-than-granted": {"completion_tokens": 11},
}


@pytest.mark.parametrize("check", OPEN_FAULTS)
def test_rows_that_stand_still(make: Make, check: str) -> None:
    row = make(**OPEN_FAULTS[check])
    assert found(check) == {str(row.pk)}


def test_a_row_that_cannot_start_now_is_not_stuck(make: Make, worker: Worker) -> None:
    make(claimed=False, is_suspect=True)
    make(claimed=False, grant=2000)
    make()  # beside it neither fits
    Worker.objects.update(running=1)
    assert not problems()
    Worker.objects.update(running=2)  # full
    make(claimed=False)
    assert not problems()


def test_rows_nobody_serves_or_ends(make: Make, worker: Worker) -> None:
    row = make(claimed=False, wait_until=timezone.now() - HOUR)
    Worker.objects.update(lease_until=timezone.now() - timedelta(minutes=5))
    findings = {one.check: one for one in examine(grace=NOTHING) if one.check != "chatsite.W006"}
    assert {"generation-unserved", "generation-overdue", "model-without-worker", "worker-died"} == set(findings)
    assert findings["generation-unserved"].subjects == (str(row.pk),) == findings["generation-overdue"].subjects
    assert not findings["worker-died"].is_problem


def test_a_running_row_without_a_worker(make: Make) -> None:
    row = make(worker=None)
    assert found("generation-orphaned") == {str(row.pk)}


def test_a_workers_row_from_long_ago(worker: Worker, echo_model: ServedModel) -> None:
    Worker.objects.create(name="old", model=echo_model, host="here", pid=2, state="GONE", lease_until=Now() - 2 * HOUR)
    assert found("worker-row-left") == {"old"}


def test_texts_that_are_not_purged(make: Make) -> None:
    row = end(make())
    Generation.objects.filter(pk=row.pk).update(finished_at=Now() - HOUR)
    assert found("not-purged") == {str(row.pk)}
    assert purge() == 1
    assert found("not-purged") == set()


def answer(generation: Generation | None, user: User, **facts: Any) -> Message:
    chat = Conversation.objects.create(user=user, model_version="echo")
    values = {"sender_role": "assistant", "created_at": timezone.now() - timedelta(minutes=1)} | facts
    return Message.objects.create(conversation=chat, generation=generation, **values)


def test_answers_without_an_end(make: Make, user: User) -> None:
    lost, open_one = answer(None, user), answer(make(), user)
    ended = answer(end(make()), user)
    Message.objects.filter(pk=ended.pk).update(finish_reason=None)
    assert found("answer-without-end") == {str(lost.pk), str(ended.pk)}
    repair(examine(grace=NOTHING))
    assert [Message.objects.get(pk=one.pk).finish_reason for one in (lost, ended, open_one)] == ["error", "stop", None]


def test_an_answer_that_differs_from_its_generation(make: Make, user: User) -> None:
    row = make()
    message = answer(row, user)
    end(row)
    assert not problems()
    Message.objects.filter(pk=message.pk).update(content="something else")
    assert found("answer-differs") == {str(message.pk)}


def as_superuser_of_the_ledger(statement: str, *values: object) -> None:
    """The ledger refuses changes; a fault is one that happened all the same."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(statement, values)
        cursor.execute("SET LOCAL session_replication_role = origin")


def test_an_end_that_is_not_booked(make: Make) -> None:
    row = end(make())
    as_superuser_of_the_ledger("DELETE FROM billing_ledgerentry WHERE generation_id = %s", row.pk)
    assert found("not-booked") == {str(row.pk)}


def test_an_end_that_is_booked_wrongly(make: Make) -> None:
    row = end(make())
    as_superuser_of_the_ledger("UPDATE billing_ledgerentry SET completion_tokens = 6")
    assert found("booked-wrongly") == {str(row.pk)}


def test_an_end_that_is_booked_twice(make: Make) -> None:
    row = end(make())
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX ledgerentry_one_usage")
    entry = LedgerEntry.objects.get(generation_id=row.pk)
    entry.pk = None
    entry.save(force_insert=True)
    assert found("booked-twice") == {str(row.pk)}


def test_an_open_row_that_is_booked(make: Make) -> None:
    row = end(make())
    Generation.objects.filter(pk=row.pk).update(
        status="RUNNING", finish_reason=None, finished_at=None, lease_until=Now() + HOUR
    )
    assert found("booked-while-open") == {str(row.pk)}


def test_sums_by_day_that_differ(make: Make) -> None:
    end(make())
    yesterday = timezone.now() - timedelta(days=1, minutes=30)  # just after midnight, a day earlier
    as_superuser_of_the_ledger("UPDATE billing_ledgerentry SET created_at = %s", yesterday)
    day = yesterday.date()
    assert found("roll-up-differs") == {str(day)}
    repair(examine(grace=NOTHING))
    assert found("roll-up-differs") == set()
    UsageDay.objects.update(prompt_tokens=F("prompt_tokens") + 1)
    assert found("roll-up-differs") == {str(day)}
    assert roll_up(day, day) == 1
    assert found("roll-up-differs") == set()


# -- Valkey -------------------------------------------------------------------------------------------------


def test_a_reservation_that_nobody_gave_back(user: User, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    PlanWindow.objects.filter(plan=user.plan).delete()  # no window, which would count it as well
    name = uuid4()
    admit(user, 10, name=name)
    kept = make()
    admit(user, 3, asked=10, name=kept.pk)
    assert found("reservation-leaked") == {str(name)}
    monkeypatch.setattr("inference.tasks.UNWRITTEN_S", -1.0)
    repair(examine(grace=NOTHING))
    assert [one.generation_id for one in counters.held(older_than_s=-1)] == [kept.pk]


def test_a_counter_that_drifted(user: User) -> None:
    admit(user, 10)
    (key, _, seconds) = next(iter(counters.window_keys(counters.current_epoch())))
    assert not problems(HOUR)
    counters.store().hincrby(key, f"t{int(timezone.now().timestamp() * 1000) // (seconds * 10)}", 7)
    findings = {one.check: one for one in problems(HOUR)}
    assert set(findings) == {"counter-drifted"} and findings["counter-drifted"].subjects == (key,)
    repair(findings.values())
    assert not problems(HOUR)


def test_logs_that_would_stay(make: Make) -> None:
    row, running = end(make()), make()
    store = leftovers.shards()[0]
    for one in (row, running):
        store.rpush(f"log:{one.pk}", b"x")
        store.set(f"attempt:{one.pk}", 1)
    store.set(f"attempt:{uuid4()}", 1, ex=60)  # goes by itself
    assert found("log-kept") == {str(row.pk)}
    repair(examine(grace=NOTHING))
    assert set(leftovers.kept()) == {running.pk}


def test_the_purge_takes_the_log_along(make: Make) -> None:
    row = end(make())
    Generation.objects.filter(pk=row.pk).update(finished_at=Now() - timedelta(minutes=2))
    leftovers.shards()[0].rpush(f"log:{row.pk}", b"x")
    assert purge() == 1
    assert leftovers.shards()[0].keys("*") == []


def test_logs_are_purged_once_the_store_is_back(make: Make, settings: Settings) -> None:
    row = end(make())
    Generation.objects.filter(pk=row.pk).update(finished_at=Now() - timedelta(minutes=2))
    urls, settings.REDIS_URLS = settings.REDIS_URLS, ["redis://127.0.0.1:1"]
    leftovers.shards.cache_clear()
    assert purge() == 0
    settings.REDIS_URLS = urls
    leftovers.shards.cache_clear()
    assert purge() == 1


def test_tickets_that_nobody_takes(echo_model: ServedModel, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatsite.doctor.stores.MOST_TICKETS", 2)
    for _ in range(3):
        current_app.send_task("inference.ticket", queue="gpu.echo", ignore_result=True)
    assert found("queue-long") == {"gpu.echo: 3"}


# -- surroundings -------------------------------------------------------------------------------------------


def test_settings_that_cannot_work(worker: Worker, settings: Settings) -> None:
    settings.DATABASE_POOL = 10_000
    (finding,) = problems()
    assert finding.check == "chatsite.E004" and "DATABASE_POOL" in finding.advice


def test_a_schema_that_is_behind(worker: Worker) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'sessions'")
    assert found("migrations-missing") == {"sessions.0001_initial"}


def test_a_store_that_is_away_is_a_finding(worker: Worker, settings: Settings) -> None:
    settings.REDIS_URLS = ["redis://127.0.0.1:1"]
    counters.store.cache_clear()
    leftovers.shards.cache_clear()
    try:
        findings = {one.check for one in examine(grace=NOTHING)}
    finally:
        counters.store.cache_clear()
    assert findings == {"valkey", "chatsite.W005"}


# -- what is told -------------------------------------------------------------------------------------------


def test_what_was_under_way_is_not_confirmed() -> None:
    def one(check: str, *subjects: str) -> Finding:
        return Finding(check, "what", "advice", subjects)

    first, second = [one("a", "1", "2"), one("b"), one("c", "1")], [one("a", "2", "3"), one("b"), one("c", "9")]
    assert confirmed(first, second) == [one("a", "2"), one("b")]
    assert confirmed([], second) == [] == confirmed(first, [])


def test_the_command_tells_people_and_programs(
    make: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatsite.management.commands.doctor.SECOND_LOOK_S", 0)
    call_command("doctor")
    assert "PROBLEM" not in capsys.readouterr().out
    rows = [make(lease_until=timezone.now() - HOUR) for _ in range(7)]
    with pytest.raises(SystemExit, match="1"):
        call_command("doctor")
    said = capsys.readouterr().out
    assert "PROBLEM  lease-lapsed (7)" in said and "and 2 more" in said and "→" in said
    with pytest.raises(SystemExit, match="1"):
        call_command("doctor", json=True)
    told = json.loads(capsys.readouterr().out)
    assert not told["healthy"] and {subject for one in told["findings"] for subject in one["subjects"]} == {
        str(row.pk) for row in rows
    }


def test_a_note_is_no_problem() -> None:
    note = Finding("log-kept", "what", "advice", ("x",), is_problem=False)
    assert "as it should be" in as_text([])
    assert healthy([note]) and json.loads(as_json([note]))["healthy"] and as_text([note]).startswith("note")
