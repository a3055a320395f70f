"""More answers to one question."""

import pytest

from billing.errors import Refusal
from billing.operations import Principal
from conversations import operations
from conversations.models import Conversation, Message
from tests.conversations.conftest import Finish


@pytest.mark.parametrize("target", ["user_message", "assistant_message"])
def test_adds_a_sibling_answer(principal: Principal, conversation: Conversation, finish: Finish, target: str) -> None:
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    finish(first.generation, "One")
    again = operations.regenerate(
        principal=principal, conversation_id=conversation.pk, message_id=getattr(first, target).pk
    )
    finish(again.generation, "Two")
    answers = Message.objects.filter(parent=first.user_message)
    assert list(answers.values_list("content", flat=True)) == ["One", "Two"]
    assert again.generation.prompt_ids == first.generation.prompt_ids


def test_not_while_an_answer_is_written(principal: Principal, conversation: Conversation) -> None:
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    for target in (first.user_message, first.assistant_message):
        with pytest.raises(Refusal) as refusal:
            operations.regenerate(principal=principal, conversation_id=conversation.pk, message_id=target.pk)
        assert (refusal.value.code, refusal.value.status) == ("answer_running", 409)


def test_message_of_another_conversation_is_404(principal: Principal, conversation: Conversation) -> None:
    other = operations.start(user=principal.user)
    sent = operations.send(principal=principal, conversation_id=other.pk, content="Hi")
    with pytest.raises(Refusal) as refusal:
        operations.regenerate(principal=principal, conversation_id=conversation.pk, message_id=sent.user_message.pk)
    assert refusal.value.status == 404


def test_message_without_a_question_is_refused(principal: Principal, conversation: Conversation) -> None:
    message = Message.objects.create(conversation=conversation, sender_role="assistant", content="Hello!")
    with pytest.raises(Refusal) as refusal:
        operations.regenerate(principal=principal, conversation_id=conversation.pk, message_id=message.pk)
    assert refusal.value.code == "not_a_question"
