"""Editing makes a branch; what was there stays."""

import pytest

from billing.errors import Refusal
from billing.operations import Principal
from conversations import operations
from conversations.models import Conversation, Message
from tests.conversations.conftest import Finish
from tests.conversations.test_context import texts


def test_adds_a_sibling_question_with_its_own_answer(
    principal: Principal, conversation: Conversation, finish: Finish
) -> None:
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="One")
    finish(first.generation, "A")
    second = operations.send(principal=principal, conversation_id=conversation.pk, content="Two")
    finish(second.generation, "B")
    edited = operations.edit(
        principal=principal, conversation_id=conversation.pk, message_id=second.user_message.pk, content="Two!"
    )
    assert edited.user_message.parent_id == first.assistant_message.pk
    assert texts(edited.generation.prompt_ids) == ["Be brief.", "One", "A", "Two!"]
    assert Message.objects.get(pk=second.user_message.pk).content == "Two"


def test_first_message_becomes_a_second_root(principal: Principal, conversation: Conversation) -> None:
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="One")
    edited = operations.edit(
        principal=principal, conversation_id=conversation.pk, message_id=first.user_message.pk, content="Uno"
    )
    assert edited.user_message.parent_id is None
    assert texts(edited.generation.prompt_ids) == ["Be brief.", "Uno"]


def test_answers_cannot_be_edited(principal: Principal, conversation: Conversation, finish: Finish) -> None:
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="One")
    finish(first.generation, "A")
    with pytest.raises(Refusal) as refusal:
        operations.edit(
            principal=principal,
            conversation_id=conversation.pk,
            message_id=first.assistant_message.pk,
            content="B",
        )
    assert refusal.value.code == "not_a_question"
