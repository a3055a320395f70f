"""/v1 over a real site: shapes and refusals."""

import json
from typing import Any

import httpx
import pytest

from inference.models import Generation
from tests.end_to_end.calls import body, chunks, lines, text_of
from tests.people import Person, numbers
from tests.site import Site


def test_stream_has_every_token_in_order_in_openais_shape(site: Site, person: Person) -> None:
    raw = lines(person, site.webs[0].url, body("n=50 itl=2 ttft=5", stream=True))
    found = chunks(raw)
    assert numbers(text_of(found)) == list(range(50))
    assert raw[-2:] == ["data: [DONE]", ""] or raw[-1] == "data: [DONE]"
    assert all(line in ("", ": ping") or line.startswith("data: ") for line in raw)  # no id:, event:, retry:
    first, last = found[0], found[-1]
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert first["request_id"] == first["id"] == str(person.newest().pk)
    assert first["object"] == "chat.completion.chunk" and first["model"] == "echo"
    assert last["choices"][0]["finish_reason"] == "stop"
    assert [chunk["seq"] for chunk in found] == sorted(chunk["seq"] for chunk in found)


def test_first_chunk_comes_before_any_token(site: Site, person: Person) -> None:
    request = body("n=1 ttft=60000", stream=True)
    with person.http(site.webs[0].url).stream("POST", "/v1/chat/completions", json=request) as response:
        chunk = json.loads(next(line for line in response.iter_lines() if line)[6:])
        assert chunk["request_id"] == response.headers["x-request-id"]
        assert chunk["seq"] == 0
    person.wait_for_status("CANCELLED")


def test_usage_chunk_only_where_asked_for(site: Site, person: Person) -> None:
    """Case 44."""
    plain = chunks(lines(person, site.webs[0].url, body("n=3 itl=1", stream=True)))
    assert all(chunk["choices"] and "usage" not in chunk for chunk in plain)
    options = {"include_usage": True}
    *chosen, last = chunks(lines(person, site.webs[0].url, body("n=3 itl=1", stream=True, stream_options=options)))
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chosen)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == person.newest().completion_tokens >= 3
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]


def test_whole_answer(site: Site, person: Person) -> None:
    response = person.http(site.webs[1].url).post("/v1/chat/completions", json=body("n=20 itl=1 emoji=1"))
    answer = response.json()
    assert numbers(answer["choices"][0]["message"]["content"]) == list(range(20))
    assert "\ufffd" not in answer["choices"][0]["message"]["content"]
    assert answer["object"] == "chat.completion"
    assert answer["id"] == answer["request_id"] == response.headers["x-request-id"]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_output_limit_is_length(site: Site, person: Person) -> None:
    answer = person.http(site.webs[0].url).post("/v1/chat/completions", json=body("n=20 itl=1", max_tokens=5)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5


# -- refusals -----------------------------------------------------------------------------------------


def form(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", **fields}}


def nested(depth: int) -> dict[str, Any]:
    return {"items": nested(depth - 1)} if depth else {}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 999999}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"n": 1000}, "n"),
    ({"n": 2}, "n"),
    ({"seed": 2**70}, "seed"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["\0"]}, "stop"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": ["hello"]}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"),
    ({"messages": [{"role": "user", "content": None}]}, "messages"),
    ({"messages": [{"role": "user", "content": "a\0b"}]}, "messages"),
    ({"messages": [{"role": "user", "content": "a\ud800b"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    ({"model": 7}, "model"),
    ({"model": "a\0b"}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options"),
    ({"conversation_id": "nonsense"}, "conversation_id"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"audio": {"voice": "alloy"}}, "audio"),
    ({"response_format": {"type": "json_object"}}, "response_format"),  # of the echo engine
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": form(name="a b")}, "response_format.json_schema.name"),
    ({"response_format": form(schema=[])}, "response_format.json_schema.schema"),
    ({"response_format": form(schema={"type": "thing"})}, "response_format.json_schema.schema"),
    ({"response_format": form(schema={"properties": {"a\ud800": 7}})}, "response_format.json_schema.schema"),
    ({"response_format": form(schema={"title": "x" * 64_000})}, "response_format.json_schema.schema"),
    ({"response_format": form(schema=nested(900))}, "response_format.json_schema.schema"),
    ({"response_format": form(schema={"$schema": "https://example.org/mine"})}, "response_format"),
    ({"logprobs": True}, "logprobs"),
]


@pytest.mark.parametrize(
    ("fields", "param"), BAD, ids=lambda value: None if isinstance(value, str) else str(value)[:40]
)
def test_bad_field_is_named(site: Site, person: Person, fields: dict[str, Any], param: str) -> None:
    """Cases 48 and 25."""
    request = json.dumps({**body("n=1"), **fields}).encode()
    response = person.http(site.webs[0].url).post("/v1/chat/completions", content=request)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"].startswith(param) and param in error["message"]
    assert error["type"] == "invalid_request_error" and error["code"]
    assert not Generation.objects.filter(user=person.user).exists()


@pytest.mark.parametrize(
    "raw", [b"[]", b"", b"{", b"null", b'{"messages": NaN}', b"\xff\xfe", b'{"a": "\xff"}', b"[" * 100_000, b"1" * 5000]
)
def test_bad_body(site: Site, person: Person, raw: bytes) -> None:
    """Cases 48 and 25: an array, nothing, broken JSON, invalid UTF-8, nesting without end."""
    response = person.http(site.webs[0].url).post("/v1/chat/completions", content=raw)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "body"


def test_huge_body_is_413_announced_or_not(site: Site, person: Person) -> None:
    http = person.http(site.webs[0].url)
    assert http.post("/v1/chat/completions", content=b" " * 2_000_001).status_code == 413
    parts = (b" " * 100_000 for _ in range(21))
    assert http.post("/v1/chat/completions", content=parts).status_code == 413


def test_other_refusals_have_openais_shape(site: Site, person: Person) -> None:
    http = person.http(site.webs[0].url)
    unknown = http.post("/v1/chat/completions", json=body("n=1") | {"model": "gpt-4"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    long = http.post("/v1/chat/completions", json=body("n=1 " + "x" * 9000))
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    keyless = httpx.post(f"{site.webs[0].url}/v1/chat/completions", json=body("n=1"))
    assert (keyless.status_code, keyless.json()["error"]["type"]) == (401, "authentication_error")
    cookie = httpx.post(f"{site.webs[0].url}/v1/chat/completions", json=body("n=1"), headers=person.cookie)
    assert cookie.status_code == 401
    assert http.get("/v1/chat/completions").status_code == 405
    missing = http.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


def test_failed_answer_ends_with_an_error_and_without_stop(site: Site, person: Person) -> None:
    raw = lines(person, site.webs[0].url, body("n=20 itl=1 fail=5 always=1", stream=True))
    found = chunks(raw)
    assert "error" in found[-1] and found[-1]["error"]["message"]
    assert not any((chunk.get("choices") or [{}])[0].get("finish_reason") for chunk in found)
    assert "data: [DONE]" not in raw
    whole = person.http(site.webs[0].url).post("/v1/chat/completions", json=body("n=20 itl=1 fail=5 always=1"))
    assert whole.status_code == 500 and whole.headers["x-should-retry"] == "false"


# -- the rest of /v1 ------------------------------------------------------------------------------------------


def test_models_and_usage(site: Site, person: Person) -> None:
    http = person.http(site.webs[0].url)
    http.post("/v1/chat/completions", json=body("n=4 itl=1"))
    models = http.get("/v1/models").json()
    assert models["object"] == "list" and models["data"][0]["id"] == "echo"
    assert http.get("/v1/models/echo").json()["context_length"] == 8192
    assert http.get("/v1/models/none").status_code == 404
    (today,) = http.get("/v1/usage").json()["data"]
    done = person.newest()
    assert (today["requests"], today["completion_tokens"]) == (1, done.completion_tokens)
    assert today["total_tokens"] == done.prompt_tokens + done.completion_tokens
    assert http.get("/v1/usage?start=x").json()["error"]["param"] == "start"
