"""What of a long conversation an answer sees."""

from itertools import pairwise

import pytest

from billing.errors import Refusal
from billing.operations import Principal
from conversations import operations
from conversations.models import Conversation, Message
from inference.models import ServedModel
from inference.templating import ByteTemplate
from inference.turns import Turn
from tests.conversations.conftest import Finish


def shrink(model: ServedModel, context_length: int) -> None:
    ServedModel.objects.filter(pk=model.pk).update(context_length=context_length, max_output_tokens=context_length)


def texts(ids: tuple[int, ...]) -> list[str]:
    """The contents of the turns in a prompt of the byte template, the open answer left out."""
    turns: list[bytearray] = []
    for token in ids[:-1]:
        if token in ByteTemplate.MARKERS.values():
            turns.append(bytearray())
        elif token < 256:
            turns[-1].append(token)
    return [turn.decode() for turn in turns]


def test_oldest_turns_are_left_out_and_counted(
    principal: Principal, conversation: Conversation, echo_model: ServedModel, finish: Finish
) -> None:
    shrink(echo_model, 200)
    for number in range(6):
        sent = operations.send(principal=principal, conversation_id=conversation.pk, content=f"question {number}" * 2)
        finish(sent.generation, f"answer {number}")
    # 150 tokens for the prompt: 1 + 11 (system), 24 for each question, 10 for each answer.
    assert sent.assistant_message.omitted_turns == 4
    seen = texts(sent.generation.prompt_ids)
    assert seen[0] == "Be brief." and seen[1] == "question 2question 2" and seen[-1] == "question 5question 5"
    assert sent.generation.prompt_tokens <= 150
    assert Message.objects.get(pk=sent.assistant_message.pk).omitted_turns == 4


def test_counts_of_another_model_are_checked_against_the_prompt(
    principal: Principal, conversation: Conversation, echo_model: ServedModel, finish: Finish
) -> None:
    shrink(echo_model, 400)
    for _ in range(3):
        sent = operations.send(principal=principal, conversation_id=conversation.pk, content="x" * 90)
        finish(sent.generation, "y" * 90)
    Message.objects.update(token_count=1)
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="last")
    assert sent.generation.prompt_tokens + 16 <= 400
    assert 0 < sent.assistant_message.omitted_turns < 6


def test_message_that_alone_is_too_long_is_refused_with_both_numbers(
    principal: Principal, conversation: Conversation, echo_model: ServedModel
) -> None:
    shrink(echo_model, 100)
    with pytest.raises(Refusal) as refusal:
        operations.send(principal=principal, conversation_id=conversation.pk, content="x" * 200)
    assert refusal.value.status == 400
    error = refusal.value.body()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "content")
    assert (error["tokens"], error["limit"]) == (1 + 11 + 202, 84)
    assert not Message.objects.exists()


def test_long_message_may_use_the_room_of_its_answer(
    principal: Principal, conversation: Conversation, echo_model: ServedModel
) -> None:
    shrink(echo_model, 100)
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="x" * 70)
    assert sent.generation.grant == 100 - sent.generation.prompt_tokens == 16


def test_contents_of_left_out_turns_are_not_read(
    principal: Principal, conversation: Conversation, django_assert_max_num_queries: object
) -> None:
    chain = [
        Message(conversation=conversation, sender_role=role, content="z" * 50, token_count=50, finish_reason="stop")
        for role in ("user", "assistant") * 1500
    ]
    for parent, child in pairwise(chain):
        child.parent = parent
    Message.objects.bulk_create(chain)
    with django_assert_max_num_queries(15):  # type: ignore[operator]
        sent = operations.send(principal=principal, conversation_id=conversation.pk, content="last")
    kept = len(texts(sent.generation.prompt_ids)) - 2
    assert kept % 2 == 0 and kept + sent.assistant_message.omitted_turns == 3000
    assert 50 < kept < 60


def test_no_system_turn_without_a_system_prompt(principal: Principal, echo_model: ServedModel) -> None:
    conversation = operations.start(user=principal.user, system_prompt="")
    sent = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    assert list(sent.generation.prompt_ids) == ByteTemplate().encode([Turn("user", "Hi")])
