"""Lists of models: what a person's plan includes, the same everywhere."""

import re

import pytest
from django.test import Client
from rest_framework.test import APIClient

from billing.errors import Refusal
from billing.models import User
from billing.operations import Principal
from billing.rules import forget_rules
from conversations import operations
from inference.models import ServedModel
from inference.operations import register_model


@pytest.fixture
def models(user: User, echo_model: ServedModel) -> None:
    """The plan includes one of two; the default one is the other."""
    small = register_model(name="small", engine="echo", context_length=4096)
    register_model(name="off", engine="echo", context_length=4096)
    ServedModel.objects.filter(pk="off").update(is_enabled=False)
    user.plan.allowed_models.set([small, "off"])
    assert ServedModel.objects.get(is_default=True) == echo_model


def lists(user: User, api: APIClient) -> list[list[str]]:
    browser = Client()
    browser.force_login(user)
    native, v1 = api.get("/api/v1/models").json(), api.get("/v1/models").json()
    return [
        [model["name"] for model in native["items"]],
        [model["id"] for model in v1["data"]],
        re.findall(r'<option value="([^"]+)"', browser.get("/").content.decode()),
    ]


def test_every_list_shows_what_the_plan_includes(user: User, api: APIClient, models: None) -> None:
    assert lists(user, api) == [["small"]] * 3
    assert api.get("/v1/models/small").status_code == 200
    assert [api.get(f"/v1/models/{name}").status_code for name in ("echo", "off", "none")] == [404] * 3
    user.plan.allowed_models.clear()
    assert lists(user, api) == [["echo", "small"]] * 3


def test_a_new_chat_takes_a_model_of_the_plan(user: User, models: None) -> None:
    assert operations.start(user=user).model_version == "small"


def test_another_model_is_refused_with_the_reason(user: User, models: None) -> None:
    chat = operations.start(user=user, model="echo")
    with pytest.raises(Refusal, match="Your plan does not include echo") as refused:
        operations.send(principal=Principal(user), conversation_id=chat.pk, content="Hi")
    assert (refused.value.code, refused.value.status) == ("model_not_allowed", 403)


def test_a_chat_whose_model_was_taken_away_says_so(user: User, echo_model: ServedModel) -> None:
    chat = operations.start(user=user)
    user.plan.allowed_models.set([register_model(name="small", engine="echo", context_length=4096)])
    forget_rules()
    browser = Client()
    browser.force_login(user)
    options = re.findall(r"<option value=.*?</option>", browser.get(f"/c/{chat.pk}").content.decode())
    assert "echo" in options[0] and "selected disabled" in options[0] and "not available" in options[0]
    assert 'value="small"' in options[1] and "selected" not in options[1]
