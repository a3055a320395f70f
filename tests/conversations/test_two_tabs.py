"""Two tabs write into one conversation (case 23): no message is lost, and the tree is whole."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connection

from billing import counters
from billing.errors import Refusal
from billing.models import User
from billing.operations import Principal
from conversations import operations
from conversations.models import Conversation, Message
from inference.models import Generation
from tests.conversations.conftest import Finish


def test_no_message_while_the_newest_answer_is_written(principal: Principal, conversation: Conversation) -> None:
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="One")
    for parent in (None, first.assistant_message.pk):
        with pytest.raises(Refusal) as refusal:
            operations.send(principal=principal, conversation_id=conversation.pk, content="Two", parent=parent)
        assert (refusal.value.code, refusal.value.status) == ("answer_running", 409)
    assert Message.objects.count() == 2


def test_second_tab_with_its_own_parent_becomes_a_branch(
    principal: Principal, conversation: Conversation, finish: Finish
) -> None:
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="One")
    finish(first.generation)
    parent = first.assistant_message.pk
    for text in ("Two", "Two, from the other tab"):
        operations.send(principal=principal, conversation_id=conversation.pk, content=text, parent=parent)
    assert list(Message.objects.filter(parent_id=parent).values_list("content", flat=True)) == [
        "Two",
        "Two, from the other tab",
    ]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("has_parent", [False, True])
def test_both_at_the_same_time(
    principal: Principal, conversation: Conversation, user: User, finish: Finish, has_parent: bool
) -> None:
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="One")
    finish(first.generation)
    barrier = Barrier(4)

    def post(text: str) -> operations.Sent | Refusal:
        try:
            barrier.wait(10)
            return operations.send(
                principal=principal,
                conversation_id=conversation.pk,
                content=text,
                parent=first.assistant_message.pk if has_parent else None,
            )
        except Refusal as refusal:
            return refusal
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(post, "abcd"))
    sent = [one for one in outcomes if isinstance(one, operations.Sent)]
    refused = [one for one in outcomes if isinstance(one, Refusal)]
    assert len(sent) == (4 if has_parent else 1)
    assert {one.code for one in refused} <= {"answer_running", "conversation_changed"}
    assert {one.user_message.parent_id for one in sent} == {first.assistant_message.pk}
    assert Message.objects.count() == 2 + 2 * len(sent)
    assert Message.objects.filter(parent=None).count() == 1
    assert set(counters.open_generations(user.pk)) == set(
        Generation.objects.filter(status="WAITING").values_list("pk", flat=True)
    )


def test_first_messages_do_not_make_two_roots(principal: Principal, conversation: Conversation) -> None:
    operations.send(principal=principal, conversation_id=conversation.pk, content="One")
    with pytest.raises(Refusal) as refusal:
        operations.send(principal=principal, conversation_id=conversation.pk, content="Uno")
    assert refusal.value.status == 409


def test_times_in_a_conversation_never_tie(principal: Principal, conversation: Conversation, finish: Finish) -> None:
    for text in "abc":
        finish(operations.send(principal=principal, conversation_id=conversation.pk, content=text).generation)
    times = list(conversation.messages.values_list("created_at", flat=True))
    assert len(set(times)) == 6
    chain = list(conversation.messages.values_list("pk", "parent_id"))
    assert [parent for _, parent in chain] == [None, *[pk for pk, _ in chain[:-1]]]
