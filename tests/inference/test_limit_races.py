"""Moments at which a window is filled, or a reservation given back, while its generation comes, ends or is repeated."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError, transaction

from billing import counters, truth
from billing.admission import subjects_of
from billing.models import LedgerEntry, User
from billing.operations import Principal
from billing.truth import drifted
from inference.endings import Ending, end, settle_limits
from inference.engine import Sampling
from inference.models import Generation, ServedModel
from inference.operations import admitted, submit
from tests.billing.limits import only_windows, used
from tests.inference.test_limit_properties import LIMIT, ask, finish

Act = Callable[[], None]
OLD, NEW = ("tokens", LIMIT, 3600), ("tokens", LIMIT, 7200)


@pytest.fixture
def at_a_moment(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Act], None]:
    """Let something happen once while a window is filled: before the database is read, in the middle, or after."""

    def install(moment: str, act: Act) -> None:
        real, sources, acts = truth.used, list(truth._sources), [act]

        def once() -> None:
            if acts:
                acts.pop()()

        def reading(*arguments: Any) -> truth.Used:
            if moment == "before":
                once()
            found = real(*arguments)
            if moment == "after":
                once()
            return found

        def in_the_middle(column: str, subject_id: UUID) -> Iterable[truth.OpenGrant]:
            once()
            return ()

        monkeypatch.setattr(truth, "used", reading)
        if moment == "middle":
            monkeypatch.setattr(truth, "_sources", [*sources, in_the_middle])

    return install


def ask_elsewhere(user: User, model: ServedModel) -> Generation:
    """Admitted by a process that does not know of the new window yet, and written. 10 tokens, 50 more granted."""
    subjects, name = subjects_of(Principal(user)), uuid4()
    spans = [[subjects.user, OLD[2], -1, LIMIT]]
    query = {"user": subjects.user, "others": subjects.others, "spans": spans, "gen": str(name)}
    answer = counters.reserve(query | {"prompt": 10, "wanted": 50, "least": 1, "places": 100})
    return Generation.objects.create(
        id=name,
        model=model,
        user=user,
        organization_id=user.organization_id,
        prompt_tokens=10,
        grant=answer["grant"],
        epoch=int(answer["epoch"]),
        admitted_at=datetime.fromtimestamp(answer["at"] / 1000, UTC),
    )


@pytest.mark.parametrize("moment", ["before", "middle", "after"])
@pytest.mark.parametrize("is_settled_late", [False, True])
@pytest.mark.parametrize("is_new", [False, True])
def test_an_answer_that_ends_while_a_window_is_filled_counts_once(
    user: User,
    echo_model: ServedModel,
    at_a_moment: Callable[[str, Act], None],
    moment: str,
    is_settled_late: bool,
    is_new: bool,
) -> None:
    """`is_new`: its whole life passes in that moment."""
    only_windows(user, OLD)
    user.plan.max_concurrent = 10
    ask(user, echo_model, 10, 50)
    rows = [] if is_new else [ask(user, echo_model, 10, 50)]
    only_windows(user, OLD, NEW)

    def act() -> None:
        rows[:] = rows or [ask_elsewhere(user, echo_model)]
        finish(rows[0], 7, is_announced=not is_settled_late)

    at_a_moment(moment, act)
    used(user)  # fills
    if is_settled_late:
        settle_limits(rows[0])
    assert used(user) == {"tokens_per_hour": 60 + 17, "tokens_per_2_hours": 60 + 17}
    assert not any(str(user.pk) in key for key in drifted())


def test_an_answer_that_is_written_and_ends_while_a_window_is_filled_counts_once(
    user: User, echo_model: ServedModel, at_a_moment: Callable[[str, Act], None]
) -> None:
    """It was admitted before: its reservation is known, its row is not, and it is settled before the filling."""
    only_windows(user, OLD)
    with repeat(user, echo_model, uuid4()) as row:
        only_windows(user, OLD, NEW)

        def act() -> None:
            with transaction.atomic():
                submit(row)
            finish(row, 7)

        at_a_moment("after", act)
        assert used(user) == {"tokens_per_hour": 17, "tokens_per_2_hours": 17}


def test_a_window_cannot_be_filled_while_something_is_admitted_all_the_time(
    user: User, echo_model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the caller is told to try again; nothing is counted wrongly."""
    only_windows(user, OLD)
    used(user)
    real = truth.used

    def reading(*arguments: Any) -> truth.Used:
        found = real(*arguments)
        finish(ask_elsewhere(user, echo_model), 0)
        return found

    only_windows(user, OLD, NEW)
    with monkeypatch.context() as patch, pytest.raises(counters.Unfilled):
        patch.setattr(truth, "used", reading)
        truth.fill(counters.current_epoch(), 0, [(f"u{user.pk}", NEW[2])])
    booked = sum(entry.prompt_tokens for entry in LedgerEntry.objects.all())
    assert used(user) == {"tokens_per_hour": booked, "tokens_per_2_hours": booked}


# -- repeats --------------------------------------------------------------------------------------------------


def repeat(user: User, model: ServedModel, name: UUID) -> Any:
    return admitted(
        principal=Principal(user),
        model=model,
        prompt_ids=[1] * 10,
        sampling=Sampling(),
        asked=50,
        client_key="k",
        generation_id=name,
    )


def test_the_first_of_two_repeats_loses_and_gives_back_nothing_of_the_second(
    user: User, echo_model: ServedModel
) -> None:
    """It made the reservation; the row that was written with it has ended, and is not settled yet."""
    only_windows(user, OLD)
    name = uuid4()
    with pytest.raises(IntegrityError), repeat(user, echo_model, name) as first:
        with repeat(user, echo_model, name) as second, transaction.atomic():
            submit(second)
        finish(second, 7, is_announced=False)
        with transaction.atomic():
            submit(first)
    assert used(user) == {"tokens_per_hour": 60}  # until it is settled
    settle_limits(second)
    assert used(user) == {"tokens_per_hour": 17}
    assert not any(str(user.pk) in key for key in drifted())


def test_a_repeat_that_comes_after_the_end_gives_back_what_it_reserved(user: User, echo_model: ServedModel) -> None:
    only_windows(user, OLD, ("requests", 10, 3600))
    name = uuid4()
    with repeat(user, echo_model, name) as first, transaction.atomic():
        submit(first)
    finish(first, 7)
    with pytest.raises(IntegrityError), repeat(user, echo_model, name) as late:
        assert used(user) == {"tokens_per_hour": 17 + 60, "requests_per_hour": 2}
        with transaction.atomic():
            submit(late)
    assert used(user) == {"tokens_per_hour": 17, "requests_per_hour": 1}


def test_counters_equal_the_ledger_after_everything(user: User, echo_model: ServedModel) -> None:
    """Ended, cancelled before its start, given back, repeated, lost and filled anew: the same sum in the end."""
    only_windows(user, OLD, ("requests", 100, 3600))
    user.plan.max_concurrent = 100
    rows = [ask(user, echo_model, 10, 50) for _ in range(6)]
    finish(rows[0], 50)
    assert end(rows[1], "WAITING", Ending("CANCELLED", "cancelled"))
    settle_limits(rows[1])
    with pytest.raises(RuntimeError), repeat(user, echo_model, uuid4()):
        raise RuntimeError
    finish(rows[2], 3, is_announced=False)
    counters.store().flushall()
    settle_limits(rows[2])
    only_windows(user, OLD, NEW, ("requests", 100, 3600))
    finish(rows[3], 20)
    used(user)
    for row in rows[4:]:
        finish(row, 1)
    ledger = LedgerEntry.objects.filter(user_id=user.pk)
    tokens = sum(entry.prompt_tokens + entry.completion_tokens for entry in ledger)
    assert used(user) == {"tokens_per_hour": tokens, "tokens_per_2_hours": tokens, "requests_per_hour": 6}
    assert counters.open_generations(user.pk) == []
    assert not any(str(user.pk) in key for key in drifted())
