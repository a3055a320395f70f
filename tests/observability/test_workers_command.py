"""`manage.py workers`: what is running, for people and for programs."""

import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from inference.models import ServedModel, Worker
from tests.faults.streams import ask
from tests.people import Person
from tests.site import Site, wait_until


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("workers", *arguments, stdout=out)
    return out.getvalue()


def found(*arguments: str) -> dict[str, dict[str, Any]]:
    return {worker["name"]: worker for worker in json.loads(run("--json", *arguments))}


@pytest.fixture
def no_workers(db: None) -> None:
    Worker.objects.all().delete()


def make(name: str, state: str, lease_s: float) -> Worker:
    model, _ = ServedModel.objects.get_or_create(
        name="echo", defaults={"engine": "echo", "context_length": 100, "max_output_tokens": 100}
    )
    until = timezone.now() + timedelta(seconds=lease_s)
    return Worker.objects.create(
        name=name, model=model, host="h", pid=7, engine_pid=8, state=state, slots=4, running=1, lease_until=until
    )


def test_none(no_workers: None) -> None:
    assert run().strip() == "No GPU worker has run in the last hour."
    assert json.loads(run("--json")) == []


def test_every_state_and_how_long_ago_it_was_heard_of(no_workers: None, settings: Any) -> None:
    settings.LEASE_S = 3.0
    for state, lease_s in (("STARTING", 2.0), ("READY", 3.0), ("DRAINING", 1.0), ("GONE", -60.0)):
        make(state.lower(), state, lease_s)
    make("killed", "READY", -30.0)
    workers = found()
    states = {name: worker["state"] for name, worker in workers.items()}
    assert states == {
        "starting": "loading", "ready": "ready", "draining": "draining", "gone": "gone", "killed": "dead",
    }  # fmt: skip
    ages = {name: worker["heartbeat_age_s"] for name, worker in workers.items()}
    for name, age in {"starting": 1, "ready": 0, "draining": 2, "gone": 60, "killed": 33}.items():
        assert age <= ages[name] < age + 30, name
    assert workers["ready"] | {"heartbeat_age_s": 0, "started_at": ""} == {
        "name": "ready", "state": "ready", "model": "echo", "running": 1, "slots": 4, "kv_usage": 0.0,
        "heartbeat_age_s": 0, "host": "h", "pid": 7, "engine_pid": 8, "started_at": "",
    }  # fmt: skip
    assert workers["killed"]["running"] == 0  # its work is elsewhere
    table = run().splitlines()
    assert table[0].split()[:3] == ["name", "state", "model"] and len(table) == 6
    assert any(line.split()[:2] == ["killed", "dead"] for line in table)


def test_beside_a_running_site(site: Site, person: Person) -> None:
    (worker,) = (w for w in found().values() if w["pid"] == site.workers[0].pid)
    assert (worker["state"], worker["slots"], worker["model"]) == ("ready", site.slots, "echo")
    assert worker["heartbeat_age_s"] < 60
    readings = ask(person, site.webs[0].url, "[[n=400 itl=20]]")
    next(readings)

    def runs() -> bool:
        return any(w["pid"] == site.workers[0].pid and w["running"] == 1 for w in found().values())

    wait_until(runs, "it runs one")
    readings.close()


@pytest.mark.parametrize(
    ("url", "said"), [("", "No site runs in"), ("postgresql://u@127.0.0.1:1/d", "does not answer")]
)
def test_no_site_is_one_line(settings: Any, url: str, said: str) -> None:
    settings.DATABASE_URL = url
    with pytest.raises(CommandError, match=said) as refused:
        run()
    assert "\n" not in str(refused.value)
