"""Whatever is thrown at an endpoint, the answer is a 4xx in our shape, never a 500 (cases 25 and 48)."""

import json
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rest_framework.test import APIClient

from conversations import operations
from conversations.models import Conversation
from inference.models import Generation

BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'["content"]',
    b'"text"',
    b"7",
    b"NaN",
    b'{"content": NaN}',
    b"[" * 100_000,
    b'{"content": ' * 50_000,
    b'{"title": "\xff\xfe", "content": "\xff"}',
    b'{"content": "\\ud800", "title": "\\ud800", "name": "\\ud800"}',
    b'{"content": "\\u0000", "title": "\\u0000", "name": "\\u0000"}',
    b'{"\\ud800": 1}',
    b'{"content": {"a": 1}, "title": [1], "name": 7}',
    b'{"id": "no-uuid", "content": "x"}',
    b'{"id": 1e400, "content": "x"}',
    b'{"parent": "no-uuid", "content": "x"}',
    b'{"seed": ' + b"9" * 5000 + b', "content": "x"}',
    b'{"model": "\\u0000", "content": "x", "model_version": "\\u0000"}',
    b'{"model": "no such model", "content": "x", "model_version": "no such model"}',
    b'{"content": "' + b"x" * 2_000_001 + b'"}',
]


def targets(conversation: Conversation, message: Any) -> list[tuple[str, str]]:
    one = f"/api/v1/conversations/{conversation.pk}"
    return [
        ("post", "/api/v1/conversations"),
        ("patch", one),
        ("post", f"{one}/messages"),
        ("post", f"{one}/messages/{message}/regenerate"),
        ("post", f"{one}/messages/{message}/edit"),
        ("post", "/api/v1/keys"),
    ]


def refused(response: Any) -> dict[str, Any]:
    assert 400 <= response.status_code < 500, response.content[:300]
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] and error["message"]
    return error


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:30]))
def test_bodies(body: bytes, api: APIClient, conversation: Conversation, principal: Any) -> None:
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    harmless = {b"", b"{}"}
    for method, path in targets(conversation, sent.user_message.pk):
        response = api.generic(method.upper(), path, body, content_type="application/json")
        if body not in harmless:
            refused(response)
        assert response.status_code < 500
    assert Generation.objects.count() == 1


def test_what_is_no_json_is_called_so_everywhere(api: APIClient) -> None:
    for path in ("/api/v1/conversations", "/v1/chat/completions/cancel"):
        response = api.generic("POST", path, b"garbage", content_type="application/json")
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json"), path


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_content_types(content_type: str, api: APIClient, conversation: Conversation) -> None:
    for method, path in targets(conversation, uuid4()):
        refused(api.generic(method.upper(), path, b"content=x", content_type=content_type))


@pytest.mark.parametrize(
    "query",
    [
        "cursor=%00", "cursor=x", "cursor=MjAyNg", "cursor=%ff", "limit=0", "limit=-1", "limit=x", "limit=1e3",
        "limit=99999999999999999999", "limit=%C2%B2", "archived=maybe", "q=%00", "q=" + "x" * 300,
    ],
)  # fmt: skip
def test_queries(query: str, api: APIClient, conversation: Conversation) -> None:
    refused(api.get(f"/api/v1/conversations?{query}"))
    if query.startswith(("cursor", "limit")):
        refused(api.get(f"/api/v1/conversations/{conversation.pk}/messages?{query}"))


@pytest.mark.parametrize(
    "query", ["start=x", "end=2026-13-01", "start=2026-01-02&end=2026-01-01", "start=1000-01-01", "start=%00"]
)
def test_usage_queries(query: str, api: APIClient) -> None:
    assert refused(api.get(f"/api/v1/usage?{query}"))["param"] in ("start", "end")


@pytest.mark.parametrize("path", ["conversations/1", "conversations/%00", "nothing", "conversations/", "keys/x", ""])
@pytest.mark.parametrize("method", ["get", "post", "patch", "delete", "put"])
def test_paths(path: str, method: str, api: APIClient) -> None:
    refused(getattr(api, method)(f"/api/v1/{path}", {}, format="json"))


@pytest.mark.parametrize("path", ["conversations", "models", "me", "usage", "keys"])
def test_methods(path: str, api: APIClient) -> None:
    assert refused(api.put(f"/api/v1/{path}", {}, format="json"))["code"] == "method_not_allowed"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
SAMPLING = ["temperature", "top_p", "top_k", "seed", "stop", "max_tokens", "n"]
FIELDS = [  # of each target, in order
    ["id", "title", "model", "system_prompt"],
    ["title", "is_archived", "model_version", "system_prompt"],
    ["id", "content", "parent", "model", *SAMPLING],
    ["id", "model", *SAMPLING],
    ["id", "content", "model", *SAMPLING],
    ["name"],
]


@hypothesis_settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data(), target=st.integers(0, len(FIELDS) - 1))
def test_any_json(api: APIClient, conversation: Conversation, data: st.DataObject, target: int) -> None:
    method, path = targets(conversation, uuid4())[target]
    body = json.dumps(data.draw(st.dictionaries(st.sampled_from(FIELDS[target]), values, max_size=4))).encode()
    response = api.generic(method.upper(), path, body, content_type="application/json")
    assert response.status_code < 500, (path, body, response.content)
