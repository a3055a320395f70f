"""Two models with a worker each, one of them full: the other answers, and says so on every way out."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from billing.models import LedgerEntry, Plan, User
from inference.models import Generation, Worker
from inference.operations import register_model
from tests.end_to_end.calls import body, chunks
from tests.faults.streams import ask
from tests.people import Person, make_person
from tests.queue.conftest import running_site
from tests.site import Site, database_url_of_tests, wait_until

Submit = Callable[..., Generation]


@pytest.fixture(scope="module")
def sites(committed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    """A web process and a worker of `echo` with one slot; and a worker of `small`."""
    models = tmp_path_factory.mktemp("models")
    (models / "small").mkdir()
    (models / "small" / "ECHO").touch()
    register_model(name="small", engine="echo", context_length=8192)
    environment = {"ENGINE": "echo", "MODEL_DIR": str(models)}
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("large")
        large = stack.enter_context(running_site(folder, webs=1, workers=1, slots=1, environment=environment))
        small = Site(
            tmp_path_factory.mktemp("small"), database_url=database_url_of_tests(), redis_url=os.environ["REDIS_URL"],
            webs=0, workers=1, slots=4, model="small", environment=environment,
        )  # fmt: skip
        yield large, stack.enter_context(small)


@pytest.fixture
def web(sites: tuple[Site, Site], person: Person) -> Iterator[str]:
    """The site's address; the person's plan lets `small` stand in from half a second on."""
    plan = Plan.objects.create(slug="stand-in", name="s", stand_in_id="small", stand_in_after_s=0.5, max_concurrent=9)
    User.objects.filter(pk=person.user.pk).update(plan=plan, plan_is_own=True)
    yield sites[0].webs[0].url
    User.objects.filter(plan=plan).update(plan=Plan.objects.get(is_default=True))
    plan.delete()


@pytest.fixture
def full(submit: Submit) -> None:
    """Somebody else's answer holds the only slot of `echo`, and one waits for longer than half a second."""
    submit(make_person(), "n=2 stall=1")
    wait_until(lambda: Worker.objects.filter(model="echo", running=1, state="READY").exists(), "it runs")
    waits = submit(make_person(), "n=1")
    Generation.objects.filter(pk=waits.pk).update(created_at=waits.created_at - timedelta(seconds=2))


def read(person: Person, web: str, **options: Any) -> Any:
    with person.http(web) as http:
        return http.post("/v1/chat/completions", json=body("n=3 itl=1 ttft=1", **options))


def test_the_native_stream_names_both_models(web: str, full: None, person: Person) -> None:
    readings = [dict(one.last) | {"kind": one.kinds[-1]} for one in ask(person, web, "[[n=3 itl=1 ttft=1]]")]
    started = next(event for event in readings if event["kind"] == "started")
    assert (started["model"], started["instead_of"]) == ("small", "echo")
    assert readings[-1]["finish_reason"] == "stop"
    row = person.newest()
    with person.http(web) as http:
        messages = http.get(f"/api/v1/conversations/{row.affinity}/messages").json()["items"]
    assert [(message["model"], message["instead_of"]) for message in messages] == [("", None), ("small", "echo")]
    assert LedgerEntry.objects.get(generation_id=row.pk).model == "small"


def test_openai_calls_name_both_models(web: str, full: None, person: Person) -> None:
    answer = read(person, web)
    assert (answer.json()["model"], answer.json()["instead_of"]) == ("small", "echo")
    assert answer.headers["x-instead-of"] == "echo"
    streamed = read(person, web, stream=True)
    assert streamed.headers["x-instead-of"] == "echo"
    assert {(chunk["model"], chunk["instead_of"]) for chunk in chunks(streamed.text.splitlines())} == {
        ("small", "echo")
    }


def test_what_answers_itself_names_no_other(web: str, person: Person) -> None:
    wait_until(lambda: Worker.objects.filter(model="echo", running=0).exists(), "its slot is free, and told so")
    answer = read(person, web)
    assert answer.json()["model"] == "echo" and "instead_of" not in answer.json()
    assert "x-instead-of" not in answer.headers and "instead_of" not in json.dumps(answer.json())


def test_without_a_worker_the_other_answers(sites: tuple[Site, Site], web: str, person: Person) -> None:
    """Last: the worker of `echo` is gone afterwards."""
    large, _ = sites
    large.kill(large.workers[0])
    Worker.objects.filter(model="echo").delete()
    assert read(person, web).json()["instead_of"] == "echo"
    stranger = make_person()  # whose plan has no stand-in
    assert read(stranger, web).json()["error"]["code"] == "no_worker"
