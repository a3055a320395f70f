"""NUL and lone surrogates are refused by name, wherever text comes in (case 25)."""

import json
from typing import Any

import pytest
from rest_framework.test import APIClient

from billing.errors import Refusal
from billing.models import User
from billing.operations import Principal
from conversations import operations
from conversations.models import Conversation, Message

BAD = pytest.mark.parametrize("bad", ["a\0b", "a\ud800b", "\udfff"])


def post_json(api: APIClient, method: str, path: str, data: dict[str, str]) -> Any:
    """As json.dumps writes it, which escapes surrogates; DRF's client would refuse them itself."""
    return api.generic(method.upper(), path, json.dumps(data), content_type="application/json")


@BAD
@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("post", "/api/v1/conversations", "title"),
        ("post", "/api/v1/conversations", "system_prompt"),
        ("post", "/api/v1/conversations", "model"),
        ("patch", "/api/v1/conversations/{}", "title"),
        ("patch", "/api/v1/conversations/{}", "model_version"),
        ("patch", "/api/v1/conversations/{}", "system_prompt"),
        ("post", "/api/v1/conversations/{}/messages", "content"),
        ("post", "/api/v1/keys", "name"),
    ],
)
def test_in_a_body(bad: str, method: str, path: str, field: str, api: APIClient, conversation: Conversation) -> None:
    response = post_json(api, method, path.format(conversation.pk), {field: bad})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_text", field)
    assert not Message.objects.exists()


@BAD
def test_in_an_edit(bad: str, api: APIClient, conversation: Conversation, principal: Principal) -> None:
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    path = f"/api/v1/conversations/{conversation.pk}/messages/{sent.user_message.pk}/edit"
    response = post_json(api, "post", path, {"content": bad})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_text")


def test_in_a_search(api: APIClient) -> None:
    response = api.get("/api/v1/conversations", {"q": "a\0b"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "q")


@BAD
def test_by_whoever_calls_the_operations(bad: str, user: User, conversation: Conversation) -> None:
    calls: list[Any] = [
        lambda: operations.send(principal=Principal(user), conversation_id=conversation.pk, content=bad),
        lambda: operations.start(user=user, title=bad),
        lambda: operations.update(user=user, conversation_id=conversation.pk, system_prompt=bad),
    ]
    for call in calls:
        with pytest.raises(Refusal) as refusal:
            call()
        assert refusal.value.code == "invalid_text"


@pytest.mark.parametrize("text", ["👩‍👩‍👧‍👦 🇩🇪 👍🏽", "漢字かな", "\u202e\u200b\ufeff", "\x01\x1b[31m", "\ufffe\uffff"])
def test_everything_else_is_stored_as_it_is(text: str, api: APIClient, conversation: Conversation) -> None:
    path = f"/api/v1/conversations/{conversation.pk}"
    assert api.patch(path, {"title": text}, format="json").json()["title"] == text
    sent = api.post(f"{path}/messages", {"content": text}, format="json").json()
    assert sent["user_message"]["content"] == text
    assert api.get(f"{path}/messages").json()["items"][0]["content"] == text
