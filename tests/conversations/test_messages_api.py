"""/api/v1/conversations/{id}/messages and what hangs below it."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client
from rest_framework.test import APIClient

from billing.models import User
from billing.operations import Principal
from conversations import operations
from conversations.models import Conversation, Message
from inference.models import Generation, ServedModel
from tests.conftest import PASSWORD
from tests.conversations.conftest import Finish


@pytest.fixture
def path(conversation: Conversation) -> str:
    return f"/api/v1/conversations/{conversation.pk}/messages"


def test_post_answers_202_with_everything_to_follow(api: APIClient, path: str) -> None:
    chosen = str(uuid4())
    response = api.post(path, {"content": "Hi", "id": chosen, "max_tokens": 5, "temperature": 0}, format="json")
    assert response.status_code == 202
    sent = response.json()
    assert (sent["user_message"]["id"], sent["user_message"]["finish_reason"]) == (chosen, None)
    assert sent["assistant_message"]["parent"] == chosen
    assert sent["assistant_message"]["status"] == sent["generation"]["status"] == "WAITING"
    assert sent["assistant_message"]["generation"] == sent["generation"]["id"]
    assert sent["generation"]["max_tokens"] == 5
    assert Generation.objects.get().sampling == {"temperature": 0.0}
    assert api.post(path, {"content": "Hi", "id": chosen}, format="json").json() == sent


def test_key_of_the_request_is_on_the_generation(api: APIClient, path: str, user: User) -> None:
    api.post(path, {"content": "Hi"}, format="json")
    assert Generation.objects.get().api_key_id == user.api_keys.get().pk


def test_session_needs_a_csrf_token(path: str, user: User) -> None:
    client = Client(enforce_csrf_checks=True)
    assert client.login(username=user.email, password=PASSWORD)
    assert client.get(path).status_code == 200
    refused = client.post(path, {"content": "Hi"}, content_type="application/json")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")


def test_list_shows_state_of_each_answer(
    api: APIClient, path: str, principal: Principal, conversation: Conversation, finish: Finish
) -> None:
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="One")
    finish(first.generation, "Two", reason="length")
    operations.send(principal=principal, conversation_id=conversation.pk, content="Three")
    items = api.get(path).json()["items"]
    assert [item["content"] for item in items] == ["One", "Two", "Three", ""]
    assert [item["finish_reason"] for item in items] == [None, "length", None, None]
    assert [item["status"] for item in items] == [None, None, None, "WAITING"]
    assert [item["parent"] for item in items] == [None, *[item["id"] for item in items[:-1]]]


def test_answer_whose_text_was_lost_is_shown_as_an_error(
    api: APIClient, path: str, principal: Principal, conversation: Conversation, finish: Finish
) -> None:
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="One")
    finish(sent.generation, "", status="FAILED", reason="error")
    Message.objects.filter(pk=sent.assistant_message.pk).update(finish_reason=None)  # its receiver never ran
    assert api.get(path).json()["items"][1]["finish_reason"] == "error"
    Generation.objects.all().delete()
    assert api.get(path).json()["items"][1]["finish_reason"] == "error"


def test_pages_are_whole_and_cost_four_queries(
    api: APIClient, path: str, conversation: Conversation, django_assert_num_queries: Any
) -> None:
    messages = [Message(conversation=conversation, sender_role="user", content=str(n)) for n in range(25)]
    for message in messages:
        message.created_at = conversation.created_at
    Message.objects.bulk_create(messages)
    seen: list[str] = []
    cursor = ""
    api.get(path)  # marks the key as used this minute
    while cursor is not None:
        with django_assert_num_queries(3):
            page = api.get(path, {"limit": 10, "cursor": cursor}).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert [UUID(one) for one in seen] == sorted(message.pk for message in messages)


def test_sending_costs_few_queries(
    api: APIClient, path: str, echo_model: ServedModel, django_assert_max_num_queries: Any
) -> None:
    api.get(path)
    with django_assert_max_num_queries(15):  # two of them are the test's savepoint
        assert api.post(path, {"content": "Hi"}, format="json").status_code == 202


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", "hot"), ("temperature", 999999), ("max_tokens", -5), ("n", 1000), ("top_p", 0)]
)
def test_bad_sampling_is_refused_before_anything_is_stored(
    api: APIClient, path: str, field: str, value: object
) -> None:
    response = api.post(path, {"content": "Hi", field: value}, format="json")
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
    assert not Generation.objects.exists()


def test_regenerate_edit_and_delete(
    api: APIClient, path: str, principal: Principal, conversation: Conversation, finish: Finish
) -> None:
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="One")
    finish(sent.generation)
    again = api.post(f"{path}/{sent.assistant_message.pk}/regenerate", {"seed": 1}, format="json")
    assert again.status_code == 202 and again.json()["user_message"]["id"] == str(sent.user_message.pk)
    edited = api.post(f"{path}/{sent.user_message.pk}/edit", {"content": "Uno", "id": str(uuid4())}, format="json")
    assert edited.status_code == 202 and edited.json()["user_message"]["parent"] is None
    assert api.delete(f"{path}/{sent.user_message.pk}").status_code == 204
    assert [item["content"] for item in api.get(path).json()["items"]] == ["Uno", ""]


def test_cancel_is_idempotent(api: APIClient, conversation: Conversation, path: str) -> None:
    generation = api.post(path, {"content": "Hi"}, format="json").json()["generation"]["id"]
    cancel = f"/api/v1/conversations/{conversation.pk}/cancel"
    stopped = api.post(cancel).json()["items"]
    assert [(one["id"], one["status"], one["finish_reason"]) for one in stopped] == [
        (generation, "CANCELLED", "cancelled")
    ]
    again = api.post(cancel)
    assert (again.status_code, again.json()["items"]) == (200, [])
    assert api.get(path).json()["items"][1]["finish_reason"] == "cancelled"


def test_models(api: APIClient, echo_model: ServedModel) -> None:
    ServedModel.objects.create(name="off", engine="echo", context_length=1, max_output_tokens=1, is_enabled=False)
    assert api.get("/api/v1/models").json()["items"] == [
        {"name": "echo", "context_length": 4096, "max_output_tokens": 4096, "is_default": True, "is_ready": False}
    ]
