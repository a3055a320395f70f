"""The queue is never longer than its depth, however many requests come at one moment."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from uuid import uuid4

import pytest
from django.db import connection, transaction

from billing.errors import Refusal
from billing.models import User
from billing.operations import Principal
from inference import waiting
from inference.engine import Sampling
from inference.models import Generation, ServedModel
from inference.operations import admitted, submit
from inference.queueing import QueueRoom, join_queue
from tests.billing.limits import only_windows, used

CALLERS = 5


def at_once(act: Callable[[], None], times: int) -> list[str]:
    """How each of so many parallel calls was refused; empty: not at all."""
    barrier = Barrier(times)

    def run(_: int) -> str:
        try:
            barrier.wait(20)
            act()
        except Refusal as refusal:
            return refusal.code
        finally:
            connection.close()
        return ""

    with ThreadPoolExecutor(times) as threads:
        return list(threads.map(run, range(times)))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("depth", [1, 4])
def test_parallel_requests_fill_the_queue_and_no_more(user: User, echo_model: ServedModel, depth: int) -> None:
    only_windows(user, ("requests", 100, 3600))
    user.plan.queue_depth, user.plan.max_concurrent = depth, 100
    ready = Barrier(CALLERS)

    def ask() -> None:
        with admitted(
            principal=Principal(user), model=echo_model, prompt_ids=[1] * 10, sampling=Sampling(), asked=50
        ) as row:
            ready.wait(20)  # all have seen an empty queue
            with transaction.atomic():
                submit(row)

    codes = at_once(ask, CALLERS)
    assert sorted(codes) == [""] * depth + ["queue_full"] * (CALLERS - depth)
    assert Generation.objects.filter(status="WAITING").count() == depth
    assert used(user) == {"requests_per_hour": depth}  # the others have given theirs back


@pytest.mark.django_db(transaction=True)
def test_a_long_queue_is_joined_side_by_side(user: User, echo_model: ServedModel) -> None:
    """Far from its end nobody waits for another's transaction; near it, they go one by one."""
    far, near = QueueRoom(10_000, 0), QueueRoom(10, 0)
    ready = Barrier(4)

    def join(room: QueueRoom, *, is_together: bool) -> Callable[[], None]:
        def act() -> None:
            with transaction.atomic():
                join_queue(row(user, echo_model), room)
                if is_together:
                    ready.wait(20)  # all four are inside at the same time
                row(user, echo_model).save(force_insert=True)

        return act

    assert at_once(join(far, is_together=True), 4) == [""] * 4
    assert at_once(join(near, is_together=False), 4) == [""] * 4
    with transaction.atomic():
        assert waiting.take_place(echo_model.pk, 0, 9) and not waiting.take_place(echo_model.pk, 0, 8)
        assert waiting.take_place(echo_model.pk, 1, 1)  # lower bands are not before it


def row(user: User, model: ServedModel) -> Generation:
    return Generation(
        id=uuid4(), user=user, organization_id=user.organization_id, model=model, prompt_tokens=1, grant=1
    )
