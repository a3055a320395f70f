"""The official client against /v1."""

import time
import uuid

import openai
import pytest
from openai import OpenAI

from tests.people import Person, numbers
from tests.site import Site


def client_of(person: Person, site: Site, web: int = 0) -> OpenAI:
    return OpenAI(base_url=f"{site.webs[web].url}/v1", api_key=person.key, max_retries=0)


def ask(order: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Count."}, {"role": "user", "content": f"[[{order}]]"}]


def test_stream(site: Site, person: Person) -> None:
    options = {"include_usage": True}
    stream = client_of(person, site).chat.completions.create(
        model="echo", messages=ask("n=30 itl=2 emoji=1"), stream=True, stream_options=options
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert numbers(text) == list(range(30)) and text.count("😀") == 30
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage and chunks[-1].usage.prompt_tokens > 0
    assert chunks[0].request_id == chunks[0].id  # type: ignore[attr-defined]


def test_whole_answer(site: Site, person: Person) -> None:
    answer = client_of(person, site).chat.completions.create(
        model="echo", messages=ask("text=Hello ]there"), temperature=0, max_tokens=100, stop=["]"], n=1, seed=3
    )
    assert answer.choices[0].message.content == "Hello "
    assert answer.choices[0].finish_reason == "stop"


def test_heartbeats_before_a_slow_first_token_go_unseen(site: Site, person: Person) -> None:
    """Case 4: DESIGN's trap with comments and blank lines."""
    stream = client_of(person, site).chat.completions.create(
        model="echo", messages=ask("n=2 ttft=1400 itl=700"), stream=True
    )
    chunks = list(stream)
    assert numbers("".join(chunk.choices[0].delta.content or "" for chunk in chunks)) == [0, 1]
    assert all(chunk.choices for chunk in chunks)


def test_errors_have_the_clients_types(site: Site, person: Person) -> None:
    client = client_of(person, site)
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="echo", messages=ask("n=1"), temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=ask("n=1"))
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-chat-wrong").models.list()
    with pytest.raises(openai.NotFoundError):
        client.get(f"/nothing/{uuid.uuid4()}", cast_to=object)


def test_failure_in_mid_stream_raises(site: Site, person: Person) -> None:
    stream = client_of(person, site).chat.completions.create(
        model="echo", messages=ask("n=20 itl=2 fail=5 always=1"), stream=True
    )
    text = ""
    with pytest.raises(openai.APIError) as failed:
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert numbers(text) == list(range(5))
    assert failed.value.code


def test_failed_whole_answer_is_not_asked_for_again(site: Site, person: Person) -> None:
    client = client_of(person, site).with_options(max_retries=2)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="echo", messages=ask("n=20 itl=2 fail=5 always=1"))
    assert person.user.generations.count() == 1


def test_closing_the_stream_cancels(site: Site, person: Person) -> None:
    stream = client_of(person, site).chat.completions.create(model="echo", messages=ask("n=10000 itl=10"), stream=True)
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    stream.close()
    person.wait_for_status("CANCELLED", timeout_s=1.0)


def test_models(site: Site, person: Person) -> None:
    client = client_of(person, site)
    assert [model.id for model in client.models.list()] == ["echo"]
    assert client.models.retrieve("echo").owned_by == "chatsite"


def test_cancelled_elsewhere_raises_in_both_modes(site: Site, person: Person) -> None:
    client, other = client_of(person, site), client_of(person, site, web=1)
    stream = client.chat.completions.create(model="echo", messages=ask("n=10 ttft=60000"), stream=True)
    request_id = next(iter(stream)).id
    other.post(f"/chat/completions/{request_id}/cancel", cast_to=object)
    began = time.monotonic()
    with pytest.raises(openai.APIError, match="cancelled"):
        list(stream)
    assert time.monotonic() - began < 2
