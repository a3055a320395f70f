"""Deleting while an answer is written (case 24): stopped, charged, nothing left, nothing else touched."""

from itertools import pairwise

import pytest
from django.utils import timezone

from billing.errors import Refusal
from billing.models import LedgerEntry
from billing.operations import Principal
from conversations import operations
from conversations.models import Conversation, Message
from inference.models import Generation
from tests.conversations.conftest import Finish


def started(generation: Generation) -> None:
    """As a worker's claim leaves it."""
    Generation.objects.filter(pk=generation.pk).update(status="RUNNING", started_at=timezone.now())


def test_conversation_with_a_waiting_answer(principal: Principal, conversation: Conversation) -> None:
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    operations.delete_conversation(user=principal.user, conversation_id=conversation.pk)
    assert not Conversation.objects.exists() and not Message.objects.exists()
    generation = Generation.objects.get(pk=sent.generation.pk)
    assert (generation.status, generation.finish_reason) == ("CANCELLED", "cancelled")
    assert LedgerEntry.objects.get().generation_id == generation.pk


def test_conversation_with_a_running_answer(principal: Principal, conversation: Conversation, finish: Finish) -> None:
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    started(sent.generation)
    operations.delete_conversation(user=principal.user, conversation_id=conversation.pk)
    generation = Generation.objects.get(pk=sent.generation.pk)
    assert (generation.status, generation.cancel_requested) == ("RUNNING", True)
    finish(generation, "half an ans", status="CANCELLED", reason="cancelled")  # what its worker does then
    entry = LedgerEntry.objects.get()
    assert (entry.prompt_tokens, entry.completion_tokens) == (generation.prompt_tokens, 11)
    assert not Message.objects.exists()


def test_branch_with_a_running_answer(principal: Principal, conversation: Conversation, finish: Finish) -> None:
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="One")
    finish(first.generation)
    parent = first.assistant_message.pk
    doomed = operations.send(principal=principal, conversation_id=conversation.pk, content="Two", parent=parent)
    beside = operations.send(principal=principal, conversation_id=conversation.pk, content="Three", parent=parent)
    operations.delete_message(user=principal.user, conversation_id=conversation.pk, message_id=doomed.user_message.pk)
    states = dict(Generation.objects.values_list("pk", "status"))
    assert states[doomed.generation.pk] == "CANCELLED" and states[beside.generation.pk] == "WAITING"
    assert set(Message.objects.values_list("pk", flat=True)) == {
        first.user_message.pk,
        parent,
        beside.user_message.pk,
        beside.assistant_message.pk,
    }


def test_running_answer_alone_then_answered_again(
    principal: Principal, conversation: Conversation, finish: Finish
) -> None:
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    started(sent.generation)
    operations.delete_message(
        user=principal.user, conversation_id=conversation.pk, message_id=sent.assistant_message.pk
    )
    again = operations.regenerate(principal=principal, conversation_id=conversation.pk, message_id=sent.user_message.pk)
    finish(sent.generation, "late", status="CANCELLED", reason="cancelled")
    answer = Message.objects.get(sender_role="assistant")
    assert answer == again.assistant_message and answer.content == ""


def test_other_conversation_is_untouched(principal: Principal, conversation: Conversation) -> None:
    other = operations.start(user=principal.user)
    kept = operations.send(principal=principal, conversation_id=other.pk, content="Hi")
    operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    operations.delete_conversation(user=principal.user, conversation_id=conversation.pk)
    assert Generation.objects.get(pk=kept.generation.pk).status == "WAITING"
    assert other.messages.count() == 2


def test_long_chain(principal: Principal, conversation: Conversation) -> None:
    chain = [Message(conversation=conversation, sender_role="user", content="x") for _ in range(3000)]
    for parent, child in pairwise(chain):
        child.parent = parent
    Message.objects.bulk_create(chain)
    operations.delete_message(user=principal.user, conversation_id=conversation.pk, message_id=chain[1].pk)
    assert Message.objects.get() == chain[0]


def test_deleting_twice_is_404(principal: Principal, conversation: Conversation) -> None:
    operations.delete_conversation(user=principal.user, conversation_id=conversation.pk)
    with pytest.raises(Refusal) as refusal:
        operations.delete_conversation(user=principal.user, conversation_id=conversation.pk)
    assert refusal.value.status == 404


def test_no_message_into_a_deleted_conversation(principal: Principal, conversation: Conversation) -> None:
    operations.delete_conversation(user=principal.user, conversation_id=conversation.pk)
    with pytest.raises(Refusal) as refusal:
        operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    assert refusal.value.status == 404
