"""/api/v1/conversations: list, create, change, delete."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from billing.models import User
from conversations import operations
from conversations.models import Conversation
from inference.models import ServedModel

PATH = "/api/v1/conversations"


@pytest.fixture
def many(user: User, echo_model: ServedModel) -> list[Conversation]:
    """Twelve, the oldest first; every two share their time."""
    start = timezone.now() - timedelta(days=1)
    return Conversation.objects.bulk_create(
        Conversation(user=user, title=f"Chat {n}", model_version="echo", updated_at=start + timedelta(hours=n // 2))
        for n in range(12)
    )


def titles(response: Any) -> list[str]:
    return [item["title"] for item in response.json()["items"]]


@pytest.mark.parametrize("limit", [1, 5, 12, 50])
def test_pages_show_each_one_once_newest_first(api: APIClient, many: list[Conversation], limit: int) -> None:
    seen: list[str] = []
    query: dict[str, Any] = {"limit": limit}
    while True:
        page = api.get(PATH, query)
        assert len(page.json()["items"]) <= limit
        seen += [item["id"] for item in page.json()["items"]]
        if page.json()["next_cursor"] is None:
            break
        query["cursor"] = page.json()["next_cursor"]
    ordered = sorted(many, key=lambda one: (one.updated_at, one.pk), reverse=True)
    assert seen == [str(one.pk) for one in ordered]


def test_search_and_archive(api: APIClient, many: list[Conversation]) -> None:
    assert titles(api.get(PATH, {"q": "chat 11"})) == ["Chat 11"]
    assert titles(api.get(PATH, {"q": "%"})) == []
    api.patch(f"{PATH}/{many[3].pk}", {"is_archived": True}, format="json")
    assert titles(api.get(PATH, {"archived": "true"})) == ["Chat 3"]
    assert "Chat 3" not in titles(api.get(PATH))


def test_create_takes_defaults(api: APIClient, echo_model: ServedModel) -> None:
    response = api.post(PATH, {}, format="json")
    assert response.status_code == 201
    assert (response.json()["title"], response.json()["model_version"]) == ("", "echo")
    assert response.json()["system_prompt"] == "You are a helpful assistant."
    assert api.get(f"{PATH}/{response.json()['id']}").json() == response.json()


def test_repeated_create_makes_one(api: APIClient, echo_model: ServedModel, stranger: User) -> None:
    chosen = str(uuid4())
    first, second = (api.post(PATH, {"id": chosen, "title": "T"}, format="json").json() for _ in range(2))
    assert first == second and first["id"] == chosen
    foreign = operations.start(user=stranger)
    taken = api.post(PATH, {"id": str(foreign.pk)}, format="json")
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "id_taken")


def test_rename_keeps_the_order(api: APIClient, many: list[Conversation]) -> None:
    response = api.patch(f"{PATH}/{many[0].pk}", {"title": "New", "system_prompt": ""}, format="json")
    assert (response.json()["title"], response.json()["system_prompt"]) == ("New", "")
    assert titles(api.get(PATH))[-1] in ("New", "Chat 1")
    stored = Conversation.objects.get(pk=many[0].pk)
    assert (stored.title, stored.updated_at) == ("New", many[0].updated_at)


def test_change_of_model(api: APIClient, conversation: Conversation) -> None:
    path = f"{PATH}/{conversation.pk}"
    assert api.patch(path, {"model_version": "no such"}, format="json").status_code == 404
    assert api.patch(path, {"model_version": "echo"}, format="json").json()["model_version"] == "echo"
    assert api.patch(path, {"title": "x" * 256}, format="json").json()["error"]["param"] == "title"
    assert api.patch(path, {"colour": "red"}, format="json").json()["error"]["param"] == "colour"


def test_delete(api: APIClient, conversation: Conversation) -> None:
    assert api.delete(f"{PATH}/{conversation.pk}").status_code == 204
    assert api.get(f"{PATH}/{conversation.pk}").status_code == 404


def test_a_page_costs_two_queries(api: APIClient, many: list[Conversation], django_assert_num_queries: Any) -> None:
    api.get(PATH)  # marks the key as used this minute
    with django_assert_num_queries(2):
        api.get(PATH)
