"""Another user's things are 404, exactly like things that do not exist (cases 6 and 7)."""

from typing import Any
from uuid import uuid4

import pytest
from django.urls import get_resolver
from rest_framework.test import APIClient

from billing.models import User
from billing.operations import Principal, issue_key
from conversations import operations
from conversations.models import Conversation, Message
from inference.models import Generation
from tests.conftest import client_of

CONVERSATION = "/api/v1/conversations/{conversation}"
OWNED: list[tuple[str, str, dict[str, Any]]] = [
    ("get", CONVERSATION, {}),
    ("patch", CONVERSATION, {"title": "mine"}),
    ("delete", CONVERSATION, {}),
    ("get", CONVERSATION + "/messages", {}),
    ("post", CONVERSATION + "/messages", {"content": "Hi"}),
    ("post", CONVERSATION + "/cancel", {}),
    ("delete", CONVERSATION + "/messages/{message}", {}),
    ("post", CONVERSATION + "/messages/{message}/regenerate", {}),
    ("post", CONVERSATION + "/messages/{message}/edit", {"content": "Hi"}),
    ("delete", "/api/v1/keys/{key}", {}),
]


@pytest.mark.parametrize(("method", "path", "body"), OWNED)
def test_stranger_gets_404(
    method: str, path: str, body: dict[str, Any], principal: Principal, conversation: Conversation, stranger: User
) -> None:
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="Secret")
    key, _ = issue_key(user=principal.user, name="mine")
    client = client_of(stranger)

    def ask(**ids: Any) -> tuple[int, bytes]:
        response = getattr(client, method)(path.format(**ids), body, format="json")
        return response.status_code, response.content

    foreign = ask(conversation=conversation.pk, message=sent.user_message.pk, key=key.pk)
    missing = ask(conversation=uuid4(), message=uuid4(), key=uuid4())
    assert foreign == missing
    assert foreign[0] == 404 and b"Secret" not in foreign[1]
    assert Generation.objects.get().status == "WAITING"
    assert Message.objects.count() == 2


@pytest.mark.parametrize("name", ["regenerate", "edit"])
def test_own_conversation_with_another_users_message(
    name: str, principal: Principal, conversation: Conversation, stranger: User
) -> None:
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="Secret")
    own = operations.start(user=stranger)
    path = f"/api/v1/conversations/{own.pk}/messages/{sent.user_message.pk}/{name}"
    assert client_of(stranger).post(path, {"content": "x"} if name == "edit" else {}, format="json").status_code == 404


def test_parent_in_another_users_conversation(principal: Principal, conversation: Conversation, stranger: User) -> None:
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="Secret")
    own = operations.start(user=stranger)
    body = {"content": "Hi", "parent": str(sent.user_message.pk)}
    response = client_of(stranger).post(f"/api/v1/conversations/{own.pk}/messages", body, format="json")
    assert response.status_code == 404


def test_lists_hold_only_ones_own(principal: Principal, conversation: Conversation, stranger: User) -> None:
    operations.send(principal=principal, conversation_id=conversation.pk, content="Secret")
    client = client_of(stranger)
    assert client.get("/api/v1/conversations").json()["items"] == []
    assert [key["name"] for key in client.get("/api/v1/keys").json()["items"]] == ["test"]
    assert client.get("/api/v1/usage").json()["items"] == []


def api_paths() -> list[str]:
    """Every path of the native API, as the URL configuration writes it."""
    found = []
    for included in get_resolver().url_patterns:
        if str(included.pattern) == "api/v1/":
            found += [str(pattern.pattern) for pattern in included.url_patterns]
    return found


def test_every_path_with_an_id_is_covered() -> None:
    tested = {path.partition("/api/v1/")[2] for _, path, _ in OWNED}
    names = {"<uuid:conversation_id>": "{conversation}", "<uuid:message_id>": "{message}", "<uuid:key_id>": "{key}"}
    for path in api_paths():
        for converter, name in names.items():
            path = path.replace(converter, name)
        assert path in tested or "{" not in path


def test_every_path_needs_a_login(db: None) -> None:
    client = APIClient(raise_request_exception=False)
    paths = api_paths()
    assert len(paths) > 10
    for path in paths:
        for part in ("conversation_id", "message_id", "key_id"):
            path = path.replace(f"<uuid:{part}>", str(uuid4()))
        response = client.get(f"/api/v1/{path}")
        assert response.status_code == 401, path
        assert response.json()["error"]["code"] == "not_authenticated"
