"""The operator's page of the queue and the workers at this moment."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client, override_settings
from django.utils import timezone

from billing import counters
from billing.models import Plan, PlanOverride, User
from chatsite.stores import free_port
from inference.models import Generation, ServedModel, Worker
from inference.right_now import BandNow, ModelNow, models_now, troubles
from tests.chatsite.test_admin import clerk, operator

__all__ = ["clerk", "operator"]
PAGE = "/admin/inference/worker/now/"
Make = Callable[..., Generation]


@pytest.fixture
def make(echo_model: ServedModel) -> Make:
    def row(user: User, seconds: float = 0, **facts: Any) -> Generation:
        since = timezone.now() - timedelta(seconds=seconds)
        return Generation.objects.create(
            user=user, organization_id=user.organization_id, model=echo_model, prompt_tokens=1, grant=1,
            created_at=since, **facts,
        )  # fmt: skip

    return row


def worker(model: ServedModel, lease_s: float = 2.0, **facts: Any) -> Worker:
    until = timezone.now() + timedelta(seconds=lease_s)
    values = {"name": "w1@gpu7", "host": "gpu7", "pid": 4242, "engine_pid": 4343, "state": "READY", "slots": 10} | facts
    return Worker.objects.create(model=model, lease_until=until, **values)


def only_model() -> ModelNow:
    (found,) = models_now()
    return found


def bands() -> dict[int, BandNow]:
    return {band.band: band for band in only_model().bands}


def test_a_site_without_anything(operator: Client, echo_model: ServedModel) -> None:
    page = operator.get(PAGE)
    assert page.status_code == 200
    assert b"No worker serves this model." in page.content and b"None." in page.content
    ServedModel.objects.all().delete()
    assert b"No model is registered yet." in operator.get(PAGE).content


def test_bands_plans_and_waits(user: User, stranger: User, echo_model: ServedModel, make: Make) -> None:
    worker(echo_model, running=10, service_s=20.0)
    PlanOverride.objects.create(
        user=stranger, plan=Plan.objects.get(slug="plus"), until=timezone.now() + timedelta(days=1)
    )
    make(user, 40)
    make(user, 5)
    make(user, status="RUNNING")
    make(stranger, 7, band=1)
    make(user, 1, band=-1, purpose="title")
    found = bands()
    assert sorted(found, reverse=True) == [3, 2, 1, 0, -1]  # also bands that only have a reserve
    free = found[0]
    assert (free.waiting, free.running, free.slots) == (2, 1, 6)  # of ten, four are reserved above
    assert free.oldest_s is not None and 40 <= free.oldest_s < 60
    assert free.starts_per_s == pytest.approx(0.3)
    assert free.wait_s == pytest.approx(3 / 0.3)  # behind the paid one and one of the other's
    assert [(plan.name, plan.waiting, plan.running) for plan in free.plans] == [("Free", 2, 1)]
    assert [plan.name for plan in found[1].plans] == ["Plus"]
    assert [plan.name for plan in found[-1].plans] == ["title"]
    model = only_model()
    assert (model.waiting, model.running, model.slots, model.state) == (4, 1, 10, "ready")


def test_workers_of_all_kinds(operator: Client, echo_model: ServedModel) -> None:
    worker(echo_model, running=7, kv_usage=0.42)
    worker(echo_model, lease_s=-9, name="silent@gpu8")
    worker(echo_model, lease_s=-100, name="left@gpu9", state="GONE")
    found = {each.name: each for each in only_model().workers}
    assert [name for name, each in found.items() if each.is_live] == ["w1@gpu7"]  # type: ignore[attr-defined]
    assert found["silent@gpu8"].seen_ago == pytest.approx(timedelta(seconds=12), abs=timedelta(seconds=5))  # type: ignore[attr-defined]
    assert found["left@gpu9"].seen_ago == pytest.approx(timedelta(seconds=100), abs=timedelta(seconds=5))  # type: ignore[attr-defined]
    assert only_model().slots == 10  # of those that serve
    page = operator.get(PAGE).content.decode()
    assert all(word in page for word in ("w1@gpu7", "7 / 10", "42 %", "4242", "4343", "gpu7", "silent", "Gone"))


def test_a_model_whose_workers_start(operator: Client, echo_model: ServedModel) -> None:
    worker(echo_model, state="STARTING")
    assert b"Its workers are starting." in operator.get(PAGE).content


def test_failures_and_moves(operator: Client, user: User, make: Make) -> None:
    now = timezone.now()
    ended = {"finish_reason": "error", "status": "FAILED", "error_code": "worker_died"}
    failed = make(user, finished_at=now, **ended)
    make(user, finished_at=now - timedelta(hours=2), **ended)
    moved = make(user, finished_at=now - timedelta(minutes=1), status="FINISHED", finish_reason="stop", attempt=2)
    make(user, finished_at=now, status="FINISHED", finish_reason="stop")
    moving = make(user, status="RUNNING", attempt=3)
    assert [row.pk for row in troubles()] == [moving.pk, failed.pk, moved.pk]
    page = operator.get(PAGE).content.decode()
    assert "worker_died" in page and str(moved.pk) in page


def test_nothing_of_what_people_write_is_shown(operator: Client, user: User, make: Make) -> None:
    make(user, finished_at=timezone.now(), status="FAILED", finish_reason="error", text="Secret words")
    assert b"Secret" not in operator.get(PAGE).content


def test_without_valkey_it_says_so(operator: Client, echo_model: ServedModel) -> None:
    with override_settings(REDIS_URLS=[f"redis://127.0.0.1:{free_port()}/0"]):
        counters.store.cache_clear()
        page = operator.get(PAGE)
    counters.store.cache_clear()
    assert page.status_code == 200 and b"Valkey does not answer" in page.content
    assert b"Valkey does not answer" not in operator.get(PAGE).content


def test_who_may_not_look_does_not(user: User, clerk: Client) -> None:
    assert Client().get(PAGE).status_code == 302  # to the login
    person = Client()
    person.force_login(user)
    assert person.get(PAGE).status_code == 302
    User.objects.filter(pk=user.pk).update(is_staff=True)
    assert person.get(PAGE).status_code == 403  # staff without the permission
    assert clerk.get(PAGE).status_code == 200


def test_it_is_linked(operator: Client, clerk: Client) -> None:
    for client in (operator, clerk):
        assert PAGE in client.get("/admin/").content.decode()
        assert PAGE in client.get("/admin/inference/worker/").content.decode()
