"""Answers in a given form (response_format), with the official client and the real engine."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
import pytest
from jsonschema import validate
from pydantic import BaseModel

from billing.models import LedgerEntry
from inference.models import Generation
from tests.people import Person
from tests.site import Site, stopped, wait_until
from tests.vllm_site.model import MODEL

pytestmark = pytest.mark.vllm
ANSWERS = {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 8, "maxItems": 12}
RIVERS = {"type": "object", "properties": {"rivers": ANSWERS}, "required": ["rivers"], "additionalProperties": False}


class Verdict(BaseModel):
    mood: Literal["good", "bad"]
    stars: Literal[1, 2, 3, 4, 5]


def client(site: Site, person: Person, max_retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{site.webs[0].url}/v1", api_key=person.key, max_retries=max_retries, timeout=60)


def asked(text: str, schema: dict[str, Any], **fields: object) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "max_tokens": 400, "response_format": form, **fields}


def test_an_answer_follows_a_schema_streamed_and_whole(site: Site, person: Person) -> None:
    create = client(site, person).chat.completions.create
    whole = create(**asked("Name rivers.", RIVERS))
    assert whole.choices[0].finish_reason == "stop"
    validate(json.loads(whole.choices[0].message.content), RIVERS)
    streamed = "".join(
        chunk.choices[0].delta.content or "" for chunk in create(**asked("Name rivers.", RIVERS), stream=True)
    )
    validate(json.loads(streamed), RIVERS)


def test_the_official_client_parses_it_into_a_model(site: Site, person: Person) -> None:
    completion = client(site, person).chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "I liked it."}], max_tokens=60, response_format=Verdict
    )
    assert isinstance(completion.choices[0].message.parsed, Verdict)


def test_any_object(site: Site, person: Person) -> None:
    question = asked("Describe a cat as JSON with a name.", {}, response_format={"type": "json_object"}, max_tokens=120)
    choice = client(site, person).chat.completions.create(**question).choices[0]
    assert choice.message.content.lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def test_what_the_engine_cannot_follow_is_refused_and_it_goes_on(site: Site, person: Person) -> None:
    ask = client(site, person)
    for schema in (
        {"$ref": "#/nowhere"},
        {"type": "string", "pattern": "(?<=a)b"},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask.chat.completions.create(**asked("Hello.", schema, max_tokens=20))
        assert (refused.value.code, refused.value.param) == ("schema_refused", "response_format")
    pids = {site.row(worker).engine_pid for worker in site.workers}
    whole = ask.chat.completions.create(**asked("Name rivers.", RIVERS))
    validate(json.loads(whole.choices[0].message.content), RIVERS)
    assert pids == {site.row(worker).engine_pid for worker in site.workers}


@pytest.mark.faults
def test_a_lost_workers_answer_breaks_off_openly(site: Site, person: Person) -> None:
    """The grammar's state is gone with the engine: no silent seam. What was said is kept, marked and charged."""
    text = ""
    killed = None
    with pytest.raises(openai.APIError) as broken:
        for chunk in client(site, person).chat.completions.create(**asked("Name rivers.", RIVERS), stream=True):
            text += chunk.choices[0].delta.content or ""
            if killed is None and len(text) > 20:
                killed = next(worker for worker in site.workers if worker.pid == person.newest().worker.pid)
                site.kill(killed, signal.SIGKILL)
    assert broken.value.code == "interrupted"
    row = person.newest()
    assert (row.status, row.finish_reason, row.attempt) == ("FAILED", "error", 2)
    assert row.text == text != ""
    assert LedgerEntry.objects.get(generation_id=row.pk).completion_tokens == row.completion_tokens > 0
    site.restart(killed)


@pytest.mark.faults
def test_a_client_that_wants_the_whole_answer_asks_again_by_itself(site: Site, person: Person) -> None:
    """It has been shown nothing: 503, after which the official client repeats the call."""
    create = client(site, person, max_retries=2).chat.completions.create
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(create, **asked("Name rivers.", RIVERS))
        mine = Generation.objects.filter(user=person.user, status="RUNNING", completion_tokens__gt=0)
        wait_until(mine.exists, "it has begun")
        with stopped(person.newest().worker.pid):  # beyond its lease
            whole = answer.result(60)
    validate(json.loads(whole.choices[0].message.content), RIVERS)
    codes = Generation.objects.filter(user=person.user).order_by("created_at").values_list("error_code", flat=True)
    assert list(codes) == ["interrupted", ""]
