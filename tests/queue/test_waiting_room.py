"""What those who wait are told: a place that moves, an estimate that is measured, and when there is no use in it."""

import threading
from collections.abc import Callable

import pytest
from django.db import connection
from django.db.models.functions import Now

from billing.errors import Refusal
from inference.models import Generation, Worker
from tests.faults.streams import ask
from tests.people import Person, make_person
from tests.site import Site, wait_until

Submit = Callable[..., Generation]


def follow(person: Person, url: str, content: str, told: list[dict[str, object]]) -> None:
    for reading in ask(person, url, content):
        if reading.kinds[-1] != "delta":
            told.append(dict(reading.last) | {"kind": reading.kinds[-1]})
    connection.close()


def test_the_third_in_line_becomes_the_second_then_the_first_and_then_starts(narrow_site: Site, submit: Submit) -> None:
    url = narrow_site.webs[0].url
    order = "n=25 itl=100 ttft=100"  # each longer than the time between two looks
    for _ in range(3):
        submit(make_person(), order)
    told: list[dict[str, object]] = []
    follow(make_person(), url, f"[[{order}]]", told)
    queued = [event for event in told if event["kind"] == "queued"]
    assert [event["position"] for event in queued if event["eta_seconds"] is not None][-1] == 1
    positions = [event["position"] for event in queued]
    assert positions == sorted(positions, reverse=True) and set(positions) == {3, 2, 1}
    assert [event["kind"] for event in told][-2:] == ["started", "done"]
    for event in queued:  # 2.6 s each; nothing is known before the first has ended
        if event["eta_seconds"] is not None:
            assert event["position"] <= float(str(event["eta_seconds"])) <= 5 * event["position"]


def test_a_request_that_waits_too_long_ends_with_an_error_event(
    narrow_site: Site, submit: Submit, person: Person
) -> None:
    submit(make_person(), "n=2 stall=1")
    wait_until(lambda: Generation.objects.filter(status="RUNNING").exists(), "one runs")
    told: list[dict[str, object]] = []
    reader = threading.Thread(target=follow, args=(person, narrow_site.webs[0].url, "[[n=1]]", told))
    reader.start()
    wait_until(lambda: Generation.objects.filter(user=person.user, status="WAITING").exists(), "it waits")
    Generation.objects.filter(user=person.user).update(wait_until=Now())
    reader.join(10)
    assert [event["kind"] for event in told][-1] == "error"
    assert told[-1]["code"] == "waited_too_long"
    assert person.newest().status == "FAILED" and person.newest().started_at is None


def test_who_would_wait_longer_than_the_plan_allows_is_told_so_at_once(
    narrow_site: Site, submit: Submit, settings: pytest.FixtureRequest
) -> None:
    first = submit(make_person(), "n=10 itl=100 ttft=1")
    wait_until(lambda: Generation.objects.get(pk=first.pk).finish_reason, "one has ended")
    wait_until(lambda: Worker.objects.filter(service_s__gt=0.5, running=0).exists(), "its time is known")
    settings.MAX_WAIT_S = 4.0  # type: ignore[attr-defined]
    submit(make_person(), "n=2 stall=1")
    wait_until(lambda: Worker.objects.filter(running=1).exists(), "the slot is taken")
    with pytest.raises(Refusal) as refused:
        for _ in range(20):
            submit(make_person(), "n=1")
    assert refused.value.code == "queue_full" and refused.value.status == 429
    assert refused.value.retry_after is not None and refused.value.retry_after > 4
    assert refused.value.extra["estimated_wait_seconds"] == round(refused.value.retry_after, 1)
    assert 1 <= Generation.objects.filter(status="WAITING").count() <= 5
    assert int(refused.value.headers()["Retry-After"]) <= 60
