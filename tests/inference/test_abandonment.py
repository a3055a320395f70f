"""For how long an answer goes on that nobody follows, and whose answers are judged at all."""

import pytest

from inference import relay, tasks, viewers
from inference.abandonment import ABANDONED
from inference.models import Generation
from inference.patience import Patience
from tests.site import wait_until

PATIENCE = Patience(chat_s=120, busy_s=15, call_s=10)


@pytest.mark.parametrize(
    ("facts", "seconds"),
    [
        ({"is_chat": True, "is_running": True, "others_wait": False}, 120),
        ({"is_chat": True, "is_running": True, "others_wait": True}, 15),
        ({"is_chat": True, "is_running": False, "others_wait": True}, 120),  # it holds no slot
        ({"is_chat": False, "is_running": True, "others_wait": False}, 10),
        ({"is_chat": False, "is_running": False, "others_wait": False}, 10),
    ],
)
def test_how_long(facts, seconds):
    assert PATIENCE.for_how_long(**facts) == seconds


def test_zero_is_never_for_people_who_may_come_back():
    never = Patience(chat_s=0, busy_s=15, call_s=10)
    assert never.for_how_long(is_chat=True, is_running=True, others_wait=True) is None
    assert never.for_how_long(is_chat=False, is_running=True, others_wait=True) == 10
    assert Patience(5, 15, 10).for_how_long(is_chat=True, is_running=True, others_wait=True) == 5


@pytest.fixture
def waiting(transactional_db, user, echo_model, settings):
    """Make a waiting row; by default of a chat. Everyone's patience is 1 s."""
    settings.ABANDON_S = settings.RETRY_S = 1.0

    def make(**fields):
        fields = {"affinity": user.pk, "organization_id": user.organization_id} | fields
        return Generation.objects.create(user=user, model=echo_model, prompt_tokens=1, grant=9, **fields)

    return make


def judge(generation):
    """Look until it was seen unfollowed for longer than anyone's patience; what became of it."""

    def is_judged():
        cancelled = tasks.cancel_unfollowed_waiting()
        return cancelled or (relay.call(viewers.look([generation.pk])) or {}).get(generation.pk, 0) > 1.3

    wait_until(is_judged, "it was seen unfollowed for long enough")
    generation.refresh_from_db()
    return generation.status, generation.finish_reason, generation.error_code


def test_a_waiting_chat_that_nobody_follows_is_cancelled(waiting):
    assert judge(waiting()) == ("CANCELLED", "cancelled", ABANDONED)


def test_a_waiting_call_whose_client_is_gone_is_cancelled_even_where_chats_never_are(waiting, settings):
    settings.ABANDON_S = 0
    chat, call = waiting(), waiting(affinity=None)
    assert judge(call)[0] == "CANCELLED"
    assert judge(chat)[0] == "WAITING"


def test_the_sites_own_are_left_alone(waiting):
    assert judge(waiting(purpose="title", band=-1))[0] == "WAITING"


def test_nobody_is_judged_while_valkey_is_away(waiting, settings, monkeypatch):
    settings.ABANDON_S = 0.0001
    generation = waiting()

    async def away(generations):
        raise ConnectionError

    monkeypatch.setattr(viewers, "look", away)
    assert tasks.cancel_unfollowed_waiting() == 0
    generation.refresh_from_db()
    assert generation.status == "WAITING"


@pytest.mark.parametrize("status", ["CANCELLED", "FINISHED"])
def test_why_it_was_cancelled_is_kept_only_if_it_was(waiting, status):
    from inference.endings import Ending, end

    generation = waiting(status="RUNNING", error_code=ABANDONED, cancel_requested=True)
    assert end(generation, "RUNNING", Ending(status=status, finish_reason="stop"))
    generation.refresh_from_db()
    assert generation.error_code == (ABANDONED if status == "CANCELLED" else "")
