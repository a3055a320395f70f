"""Deleting at the very moment at which an answer ends or a message arrives (case 24)."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connection
from django.utils import timezone

from billing.errors import Refusal
from billing.models import LedgerEntry, User
from billing.operations import Principal
from conversations import operations
from conversations.models import Conversation, Message
from inference.endings import Ending, end
from inference.models import Generation, ServedModel

ROUNDS = 12


def at_once(*acts: Callable[[], object]) -> list[object]:
    """What the acts return, a Refusal included."""
    barrier = Barrier(len(acts))

    def run(act: Callable[[], object]) -> object:
        try:
            barrier.wait(10)
            return act()
        except Refusal as refusal:
            return refusal
        finally:
            connection.close()

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(run, acts))


@pytest.mark.django_db(transaction=True)
def test_while_the_answer_ends(user: User, echo_model: ServedModel) -> None:
    for number in range(ROUNDS):
        conversation = operations.start(user=user)
        sent = operations.send(principal=Principal(user), conversation_id=conversation.pk, content="Hi")
        Generation.objects.filter(pk=sent.generation.pk).update(status="RUNNING", started_at=timezone.now())
        running = Generation.objects.get(pk=sent.generation.pk)
        ended, _ = at_once(
            lambda generation=running: end(  # type: ignore[misc]
                generation, "RUNNING", Ending("FINISHED", "stop", text="Yes.", completion_tokens=4)
            ),
            lambda pk=conversation.pk: operations.delete_conversation(user=user, conversation_id=pk),  # type: ignore[misc]
        )
        assert ended is True
        assert LedgerEntry.objects.count() == number + 1
    assert not Message.objects.exists()
    assert not Generation.objects.exclude(status="FINISHED").exists()


@pytest.mark.django_db(transaction=True)
def test_while_a_message_arrives(user: User, echo_model: ServedModel) -> None:
    for _ in range(ROUNDS):
        conversation = operations.start(user=user)
        sent, _ = at_once(
            lambda pk=conversation.pk: operations.send(  # type: ignore[misc]
                principal=Principal(user), conversation_id=pk, content="Hi"
            ),
            lambda pk=conversation.pk: operations.delete_conversation(user=user, conversation_id=pk),  # type: ignore[misc]
        )
        if isinstance(sent, Refusal):
            assert sent.status == 404
    assert not Conversation.objects.exists() and not Message.objects.exists()
    assert not Generation.objects.exclude(status="CANCELLED").exists()
