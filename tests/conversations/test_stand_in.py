"""A plan's smaller model answers while the one asked for is too busy: when, when not, and what is written of it."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from billing.errors import Refusal
from billing.models import LedgerEntry, Plan, User
from billing.operations import Principal
from conversations import operations
from conversations.completions import Call, complete
from conversations.models import Conversation
from inference.engine import Sampling
from inference.models import Generation, ServedModel, Worker
from inference.operations import register_model
from inference.templating import load_template
from inference.turns import Turn
from tests.conversations.conftest import Finish

Serve = Callable[..., Worker]


@pytest.fixture
def small(echo_model: ServedModel, user: User, tmp_path: Path, settings: Any) -> ServedModel:
    """A model that stands in for a busy one from 5 seconds of waiting on."""
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "ECHO").touch()
    settings.MODEL_DIR = tmp_path
    load_template.cache_clear()
    model = register_model(name="small", engine="echo", context_length=1024)
    ServedModel.objects.filter(pk=model.pk).update(price_completion_micro=7_000_000)
    Plan.objects.filter(pk=user.plan.pk).update(stand_in=model, stand_in_after_s=5, max_concurrent=50)
    return model


@pytest.fixture
def serve(echo_model: ServedModel) -> Serve:
    """A worker's row as it renews it: `running` of its ten slots are taken, each for `service_s` seconds."""

    def make(model: ServedModel, running: int = 0, service_s: float | None = 20.0) -> Worker:
        return Worker.objects.create(
            name="w",
            model=model,
            host="h",
            pid=1,
            state=Worker.State.READY,
            slots=10,
            running=running,
            service_s=service_s,
            lease_until=timezone.now() + timedelta(hours=1),
        )

    return make


@pytest.fixture
def wait_in_line(stranger: User, echo_model: ServedModel) -> Callable[..., None]:
    """Requests of somebody else that wait for a model."""

    def make(model: ServedModel, count: int, seconds: float = 0) -> None:
        since = timezone.now() - timedelta(seconds=seconds)
        for _ in range(count):
            Generation.objects.create(
                user=stranger, organization_id=stranger.organization_id, model=model, prompt_tokens=1, grant=1,
                created_at=since,
            )  # fmt: skip

    return make


def send(user: User, content: str = "Hi", **options: Any) -> operations.Sent:
    person = User.objects.get(pk=user.pk)
    chat = operations.start(user=person, model="echo")
    return operations.send(principal=Principal(person), conversation_id=chat.pk, content=content, **options)


def answering(user: User, content: str = "Hi", **options: Any) -> str:
    """The model whose queue a message of theirs joins."""
    return send(user, content, **options).generation.model_id


def test_a_free_slot_or_a_short_wait_changes_nothing(user: User, small: ServedModel, serve: Serve) -> None:
    serve(small)
    worker = serve(ServedModel.objects.get(pk="echo"), running=5, service_s=10.0)
    assert answering(user) == "echo"
    Worker.objects.filter(pk=worker.pk).update(running=10)
    assert answering(user) == "echo"  # second in line, six slots are the free band's, of 10 s each: 3.3 s


def test_a_long_wait_and_no_worker_let_the_other_answer(
    user: User, small: ServedModel, serve: Serve, echo_model: ServedModel, wait_in_line: Callable[..., None]
) -> None:
    serve(small)
    assert answering(user) == "small"  # nobody serves the one asked for
    serve(echo_model, running=10, service_s=1000.0)
    sent = send(user)
    assert (sent.generation.model_id, sent.generation.instead_of) == ("small", "echo")
    assert (sent.assistant_message.model, sent.assistant_message.instead_of) == ("small", "echo")
    assert Conversation.objects.get(pk=sent.conversation.pk).model_version == "echo"  # the next one asks anew


def test_while_no_pace_is_known_those_who_wait_speak_for_it(
    user: User, small: ServedModel, serve: Serve, echo_model: ServedModel, wait_in_line: Callable[..., None]
) -> None:
    serve(small)
    serve(echo_model, running=10, service_s=None)
    wait_in_line(echo_model, 1, seconds=4)
    assert answering(user) == "echo"
    wait_in_line(echo_model, 1, seconds=6)
    assert answering(user) == "small"


def test_a_full_queue_lets_the_other_answer(
    user: User, small: ServedModel, serve: Serve, echo_model: ServedModel, wait_in_line: Callable[..., None]
) -> None:
    serve(small)
    serve(echo_model, running=10, service_s=0.1)
    Plan.objects.filter(pk=user.plan.pk).update(queue_depth=3)
    wait_in_line(echo_model, 3)
    assert answering(user) == "small"
    Plan.objects.filter(pk=user.plan.pk).update(stand_in=None)
    with pytest.raises(Refusal) as refused:
        send(user)
    assert refused.value.code == "queue_full"


@pytest.mark.parametrize(
    "why", ["itself", "disabled", "not allowed", "no worker", "busy", "too long", "too little", ""]
)
def test_where_it_cannot_answer_the_one_asked_for_is_waited_for(
    user: User, small: ServedModel, serve: Serve, echo_model: ServedModel, wait_in_line: Callable[..., None], why: str
) -> None:
    serve(echo_model, running=10, service_s=1000.0)
    worker = serve(small)
    plan = Plan.objects.filter(pk=user.plan.pk)
    options: dict[str, Any] = {}
    if why == "itself":
        plan.update(stand_in="echo")
    elif why == "disabled":
        ServedModel.objects.filter(pk="small").update(is_enabled=False)
    elif why == "not allowed":
        user.plan.allowed_models.set([echo_model])
    elif why == "no worker":
        Worker.objects.filter(pk=worker.pk).update(lease_until=timezone.now())
    elif why == "busy":
        Worker.objects.filter(pk=worker.pk).update(running=10, service_s=1000.0)
    elif why == "too long":
        options["content"] = "x" * 1500
    elif why == "too little":
        options["asked"] = 2000
    assert answering(user, **options) == ("echo" if why else "small")


def test_it_does_not_answer_with_fewer_of_the_earlier_turns(
    user: User, small: ServedModel, serve: Serve, echo_model: ServedModel, finish: Finish
) -> None:
    worker = serve(echo_model)
    first = send(user, "x" * 900)
    finish(first.generation)
    Worker.objects.filter(pk=worker.pk).update(running=10, service_s=1000.0)
    serve(small)

    def ask_more() -> Generation:
        principal = Principal(User.objects.get(pk=user.pk))
        return operations.send(principal=principal, conversation_id=first.conversation.pk, content="y" * 200).generation

    assert ask_more().model_id == "echo"
    assert answering(user, "y" * 200) == "small"


def test_it_is_priced_and_booked_as_the_one_that_answers(
    user: User, small: ServedModel, serve: Serve, finish: Finish
) -> None:
    serve(small)
    sent = send(user)
    Generation.objects.filter(pk=sent.generation.pk).update(started_at=timezone.now(), status="RUNNING")
    finish(sent.generation, "four")
    entry = LedgerEntry.objects.get()
    assert (entry.model, entry.cost_micro) == ("small", 4 * 7)


def test_a_repeat_of_a_call_finds_the_answer_of_the_other_model(
    user: User, small: ServedModel, serve: Serve, echo_model: ServedModel
) -> None:
    """Also when the model asked for is free again."""
    serve(small)
    principal = Principal(User.objects.get(pk=user.pk))
    call = Call(principal, [Turn("user", "Hi")], echo_model, Sampling(), 20, "key")
    first = complete(call, uuid4())
    assert (first.model_id, first.instead_of) == ("small", "echo")
    serve(echo_model)
    assert complete(call, uuid4()).pk == first.pk
    for other in (
        Call(principal, [Turn("user", "Ho")], echo_model, Sampling(), 20, "key"),
        Call(principal, [Turn("user", "Hi")], ServedModel.objects.get(pk="small"), Sampling(), 20, "key"),
    ):
        with pytest.raises(Refusal) as refused:
            complete(other, uuid4())
        assert refused.value.code == "key_taken"
