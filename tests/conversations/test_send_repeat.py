"""The same POST twice, one after the other and at the same time (case 22)."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from uuid import UUID, uuid4

import pytest
from django.db import connection

from billing import counters
from billing.errors import Refusal
from billing.models import User
from billing.operations import Principal
from conversations import operations
from conversations.completions import Call, complete
from conversations.models import Conversation, Message
from inference.engine import Sampling
from inference.models import Generation, ServedModel
from inference.turns import Turn
from tests.billing.limits import only_windows, used
from tests.conversations.conftest import Finish


def test_second_request_gets_what_the_first_made(
    principal: Principal, conversation: Conversation, finish: Finish
) -> None:
    chosen = uuid4()
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi", message_id=chosen)
    again = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi", message_id=chosen)
    finish(first.generation)
    late = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi", message_id=chosen)
    assert first.user_message.pk == chosen and not first.is_repeat
    for repeat in (again, late):
        assert repeat.is_repeat
        assert repeat.user_message == first.user_message
        assert repeat.assistant_message == first.assistant_message
        assert repeat.generation == first.generation
    assert Message.objects.count() == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("places", [1, 4])
def test_requests_at_the_same_time_make_one(
    principal: Principal, conversation: Conversation, user: User, places: int
) -> None:
    user.plan.max_concurrent = places
    user.plan.save()
    chosen, barrier = uuid4(), Barrier(4)

    def post(_: int) -> operations.Sent:
        try:
            barrier.wait(10)
            return operations.send(
                principal=principal, conversation_id=conversation.pk, content="Hi", message_id=chosen
            )
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        sent = list(threads.map(post, range(4)))
    assert sorted(one.is_repeat for one in sent) == [False, True, True, True]
    assert {one.assistant_message.pk for one in sent} == {Message.objects.get(sender_role="assistant").pk}
    assert counters.open_generations(user.pk) == [Generation.objects.get().pk]


def test_id_used_for_another_text_is_refused(principal: Principal, conversation: Conversation) -> None:
    chosen = uuid4()
    operations.send(principal=principal, conversation_id=conversation.pk, content="Hi", message_id=chosen)
    with pytest.raises(Refusal) as refusal:
        operations.send(principal=principal, conversation_id=conversation.pk, content="Ho", message_id=chosen)
    assert (refusal.value.code, refusal.value.status) == ("id_taken", 409)


def test_id_of_another_conversation_or_user_is_refused_alike(
    principal: Principal, conversation: Conversation, stranger: User
) -> None:
    chosen = uuid4()
    operations.send(principal=principal, conversation_id=conversation.pk, content="Hi", message_id=chosen)
    own = operations.start(user=principal.user)
    foreign = operations.start(user=stranger)
    refusals = []
    for who, where in ((principal, own), (Principal(stranger), foreign)):
        with pytest.raises(Refusal) as refusal:
            operations.send(principal=who, conversation_id=where.pk, content="Hi", message_id=chosen)
        refusals.append((refusal.value.status, refusal.value.body()))
    assert refusals[0] == refusals[1] and refusals[0][0] == 409
    assert counters.open_generations(stranger.pk) == []
    assert Message.objects.count() == 2


def test_deleted_message_does_not_come_back(principal: Principal, conversation: Conversation) -> None:
    chosen = uuid4()
    operations.send(principal=principal, conversation_id=conversation.pk, content="Hi", message_id=chosen)
    operations.delete_message(user=principal.user, conversation_id=conversation.pk, message_id=chosen)
    with pytest.raises(Refusal) as refusal:
        operations.send(principal=principal, conversation_id=conversation.pk, content="Hi", message_id=chosen)
    assert refusal.value.code == "id_taken"


def test_repeated_edit_and_regenerate(principal: Principal, conversation: Conversation, finish: Finish) -> None:
    first = operations.send(principal=principal, conversation_id=conversation.pk, content="Hi")
    finish(first.generation)
    key, new_id = uuid4(), uuid4()
    for is_repeat in (False, True):
        more = operations.regenerate(
            principal=principal,
            conversation_id=conversation.pk,
            message_id=first.assistant_message.pk,
            client_key=key,
        )
        other = operations.edit(
            principal=principal,
            conversation_id=conversation.pk,
            message_id=first.user_message.pk,
            content="Ho",
            new_id=new_id,
        )
        assert more.is_repeat == other.is_repeat == is_repeat
    assert Generation.objects.count() == 3


@pytest.mark.django_db(transaction=True)
def test_calls_with_one_key_share_one_place_and_one_request(user: User, echo_model: ServedModel) -> None:
    """With room for one, all four get its answer: none is refused because of the others."""
    only_windows(user, ("requests", 1, 3600))
    user.plan.max_concurrent = 1
    user.plan.save()
    barrier = Barrier(4)

    def call(_: int) -> UUID:
        try:
            asked = Call(Principal(User.objects.get(pk=user.pk)), [Turn("user", "Hi")], echo_model, Sampling(), 20, "k")
            barrier.wait(10)
            return complete(asked, uuid4()).pk
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        answers = set(threads.map(call, range(4)))
    assert answers == {Generation.objects.get().pk}
    assert used(user) == {"requests_per_hour": 1}


def test_a_key_that_is_forgotten_may_be_used_again(user: User, echo_model: ServedModel, finish: Finish) -> None:
    call = Call(Principal(user), [Turn("user", "Hi")], echo_model, Sampling(), 20, "k")
    first = complete(call, uuid4())
    finish(first)
    Generation.objects.update(client_key=None)  # a day later
    assert complete(call, uuid4()).pk != first.pk
