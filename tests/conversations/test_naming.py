"""Titles in the background: asked for once, kept if nobody was faster, never in anyone's way (case 39)."""

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import connection
from django.utils import timezone

from billing import counters
from billing.models import LedgerEntry, Plan
from billing.operations import Principal
from conversations import naming, operations, tasks
from conversations.models import Conversation
from inference import claims
from inference.models import Generation, ServedModel, Worker
from inference.scheduling import Capacity
from tests.conversations.conftest import Finish

Ask = Callable[[str], Conversation]


@pytest.fixture
def exchange(principal: Principal, echo_model: ServedModel, finish: Finish) -> Ask:
    """A chat with one question and its answer."""

    def run(question: str = "Why is the sky blue?", answer: str = "Scattering.") -> Conversation:
        chat = operations.start(user=principal.user)
        finish(operations.send(principal=principal, conversation_id=chat.pk, content=question).generation, answer)
        return Conversation.objects.get(pk=chat.pk)

    return run


def title_of(chat: Conversation) -> tuple[str, bool]:
    return Conversation.objects.values_list("title", "title_is_provisional").get(pk=chat.pk)


def asked(chat: Conversation) -> Generation:
    return Generation.objects.get(pk=naming.title_id(chat.pk))


def test_the_first_words_are_the_title_at_once(principal: Principal, conversation: Conversation) -> None:
    operations.send(principal=principal, conversation_id=conversation.pk, content="Why  is\nthe sky blue?")
    assert title_of(conversation) == ("Why is the sky blue?", True)


def test_a_given_title_stays(principal: Principal, echo_model: ServedModel, finish: Finish) -> None:
    chat = operations.start(user=principal.user, title="Mine")
    finish(operations.send(principal=principal, conversation_id=chat.pk, content="Hi").generation)
    assert title_of(chat) == ("Mine", False)
    assert not tasks.ask_for_title(str(chat.pk)) and Generation.objects.count() == 1


def called() -> list[str]:
    """The chats whose title the side worker is asked for: what waits in its queue."""
    with redis.Redis.from_url(settings.CELERY_BROKER_URL) as broker:
        messages = [json.loads(message) for message in broker.lrange("default", 0, -1)]  # type: ignore[union-attr]
    bodies = [base64.b64decode(message["body"]) for message in messages if message["headers"]["task"] == naming.ASK]
    return [json.loads(body)[0][0] for body in bodies]


def test_the_end_of_the_first_exchange_calls_the_side_worker(
    principal: Principal, conversation: Conversation, finish: Finish
) -> None:
    chat = str(conversation.pk)
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    finish(first.generation, "", status="FAILED", reason="error")
    assert called().count(chat) == 0  # nothing to go by yet
    finish(operations.send(principal=principal, conversation_id=conversation.pk, content="Hi again").generation)
    assert called().count(chat) == 1
    naming.ask_for_title(conversation.pk)
    finish(asked(conversation), "A title")
    finish(operations.send(principal=principal, conversation_id=conversation.pk, content="More").generation)
    assert called().count(chat) == 1  # neither a title nor a later exchange asks for another


def test_the_request_is_ours_and_small(exchange: Ask) -> None:
    chat = exchange("[[n=99]] " + "x" * 3_000)
    open_before = counters.open_generations(chat.user_id)
    assert tasks.ask_for_title(str(chat.pk))
    title = asked(chat)
    assert (title.purpose, title.band, title.grant, title.status) == ("title", -1, 16, "WAITING")
    assert title.prompt_tokens < 2000 and b"[[" not in bytes(token for token in title.prompt_ids if token < 256)
    assert counters.open_generations(chat.user_id) == open_before  # outside the limits


def test_a_repeated_request_is_one(exchange: Ask) -> None:
    chat = exchange()
    assert [tasks.ask_for_title(str(chat.pk)) for _ in range(2)] == [True, False]
    Generation.objects.filter(purpose="title").update(status="FAILED", finish_reason="error")
    assert not tasks.ask_for_title(str(chat.pk))
    assert Generation.objects.filter(purpose="title").count() == 1


def test_one_title_of_a_user_waits_at_a_time(exchange: Ask) -> None:
    first, second = exchange(), exchange()
    assert [tasks.ask_for_title(str(chat.pk)) for chat in (first, second)] == [True, False]


@pytest.mark.parametrize(
    ("text", "status", "title"),
    [
        ('"Blue skies"\n', "FINISHED", "Blue skies"),
        ("<think>Let me see</think> Blue skies", "FINISHED", "Blue skies"),
        ("<think>Let me see, the user", "FINISHED", "Why is the sky blue?"),
        ("", "FINISHED", "Why is the sky blue?"),
        ("Blue sk", "FAILED", "Why is the sky blue?"),
        ("Blue sk", "CANCELLED", "Why is the sky blue?"),
        ("<img src=x onerror=alert(1)>" * 9, "FINISHED", ("<img src=x onerror=alert(1)>" * 9)[:79] + "…"),
    ],
)
def test_what_the_model_says_is_kept_if_it_is_a_title(
    exchange: Ask, finish: Finish, text: str, status: str, title: str
) -> None:
    chat = exchange()
    naming.ask_for_title(chat.pk)
    finish(asked(chat), text, status=status, reason="error" if status == "FAILED" else "stop")
    assert title_of(chat) == (title, False)


def test_titles_are_free(exchange: Ask, finish: Finish) -> None:
    ServedModel.objects.update(price_prompt_micro=10**9, price_completion_micro=10**9)
    chat = exchange()
    naming.ask_for_title(chat.pk)
    Generation.objects.update(started_at=timezone.now())
    finish(asked(chat), "Blue skies")
    entry = LedgerEntry.objects.get(generation_id=naming.title_id(chat.pk))
    assert (entry.purpose, entry.cost_micro) == ("title", 0) and entry.completion_tokens > 0


def test_who_renames_first_wins(exchange: Ask, finish: Finish) -> None:
    chat = exchange()
    naming.ask_for_title(chat.pk)
    operations.update(user=chat.user, conversation_id=chat.pk, title="Mine")
    finish(asked(chat), "Theirs")
    assert title_of(chat) == ("Mine", False)


def test_a_chat_deleted_meanwhile_stays_deleted(exchange: Ask, finish: Finish) -> None:
    chat = exchange()
    naming.ask_for_title(chat.pk)
    operations.delete_conversation(user=chat.user, conversation_id=chat.pk)
    finish(asked(chat), "Late")
    assert not Conversation.objects.exists() and asked(chat).status == "FINISHED"


def test_a_title_goes_behind_every_answer_however_long_it_waited(exchange: Ask, principal: Principal) -> None:
    chat = exchange()
    naming.ask_for_title(chat.pk)
    Generation.objects.filter(purpose="title").update(created_at=timezone.now() - timedelta(hours=1))
    Plan.objects.update(max_wait_boost_s=0.001)
    answer = operations.send(principal=principal, conversation_id=chat.pk, content="More").generation
    worker = Worker.objects.create(
        name="w", model_id="echo", host="h", pid=1, slots=4, lease_until=timezone.now() + timedelta(minutes=1)
    )
    for starts, expected in ((3, answer.pk), (7, naming.title_id(chat.pk))):  # the third is for who waited too long
        claimed = claims.claim(worker, [], Capacity(4, 10**9), frozenset(), starts).generations
        assert [generation.pk for generation in claimed] == [expected]


def pass_seconds(seconds: int) -> None:
    """As if everything were older."""
    with connection.cursor() as cursor:
        for table, column in (("conversations_conversation", "updated_at"), ("inference_generation", "created_at")):
            cursor.execute(f"UPDATE {table} SET {column} = {column} - make_interval(secs => %s)", [seconds])


def test_without_a_worker_the_first_words_stay(exchange: Ask, django_capture_on_commit_callbacks: Any) -> None:
    chat = exchange()
    naming.ask_for_title(chat.pk)
    tasks.settle_titles()
    assert asked(chat).status == "WAITING"
    pass_seconds(61)
    with django_capture_on_commit_callbacks(execute=True):
        tasks.settle_titles()
    assert asked(chat).status == "CANCELLED"
    assert title_of(chat) == ("Why is the sky blue?", False)
    assert tasks.settle_titles() == 0


def test_a_lost_call_is_made_up_for(exchange: Ask) -> None:
    chat = exchange()
    assert tasks.settle_titles() == 0
    pass_seconds(61)
    assert tasks.settle_titles() == 1
    assert asked(chat).status == "WAITING"


def test_a_long_first_answer_is_waited_for(principal: Principal, conversation: Conversation) -> None:
    operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    pass_seconds(3600)
    tasks.settle_titles()
    assert title_of(conversation) == ("Hi", True)


def test_a_chat_that_cannot_get_a_title_is_given_up(exchange: Ask) -> None:
    chat = exchange()
    ServedModel.objects.update(context_length=20)
    pass_seconds(61)
    tasks.settle_titles()
    assert title_of(chat)[1]
    pass_seconds(600)
    tasks.settle_titles()
    assert title_of(chat) == ("Why is the sky blue?", False)
