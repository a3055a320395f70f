"""Random admissions, endings, losses and flushes against a simple model: the counters always equal it.

And against the clock: in no interval of the window's length is there ever more than the limit.
"""

from dataclasses import dataclass, field
from time import monotonic
from uuid import uuid4

import pytest
from django.db import OperationalError, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from billing import counters
from billing.errors import Refusal
from billing.models import User
from billing.operations import Principal, create_user
from inference.endings import Ending, end, settle_limits
from inference.engine import Sampling
from inference.models import Generation, ServedModel
from inference.operations import admitted, submit
from inference.tasks import reconcile_limits, sweep_reservations
from tests.billing.limits import admit, flush, only_windows, refusal_of, settle, used

LIMIT, LEAST = 1000, 16


def ask(user: User, model: ServedModel, prompt: int, asked: int | None) -> Generation:
    """Admit a generation and write its row. Raises Refusal."""
    with (
        admitted(
            principal=Principal(user), model=model, prompt_ids=[1] * prompt, sampling=Sampling(), asked=asked
        ) as row,
        transaction.atomic(),
    ):
        submit(row)
    return row


def finish(row: Generation, tokens: int, *, is_announced: bool = True) -> None:
    """End it with so many output tokens; unannounced: its worker died before it could settle."""
    Generation.objects.filter(pk=row.pk).update(started_at=row.created_at, status="RUNNING")
    row.refresh_from_db()
    assert end(row, "RUNNING", Ending("FINISHED", "stop", completion_tokens=tokens))
    if is_announced:
        settle_limits(row)


def is_of(user: User, subject: str) -> bool:
    return subject == f"u{user.pk}"


@dataclass
class Model:
    """What must be counted: `held` tokens of every generation, by the row; `late`: ended, and not settled yet."""

    user: User
    served: ServedModel
    held: dict[Generation, int] = field(default_factory=dict)
    ended: dict[Generation, int] = field(default_factory=dict)
    late: dict[Generation, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return sum(self.held.values()) + sum(self.ended.values()) + sum(self.late.values())

    def ask(self, prompt: int, asked: int) -> None:
        left = LIMIT - self.tokens - prompt
        if left < min(LEAST, asked):
            assert refusal_of(self.user, prompt, asked).code in ("tokens_per_hour_used_up", "tokens_per_hour_too_small")
            return
        row = ask(self.user, self.served, prompt, asked)
        assert row.grant == min(asked, left)
        self.held[row] = prompt + row.grant

    def finish(self, number: int, share: float, is_announced: bool) -> None:
        if self.held:
            row = list(self.held)[number % len(self.held)]
            granted, tokens = self.held.pop(row), int(row.grant * share)
            finish(row, tokens, is_announced=is_announced)
            if is_announced:
                self.ended[row] = row.prompt_tokens + tokens
            else:
                self.late[row] = granted

    def lose_everything(self) -> None:
        flush()
        self._end_the_late()

    def lose_the_window(self) -> None:
        """As when it lapses, or had drifted: it is filled anew."""
        counters.forget(
            key for key, subject, _ in counters.window_keys(counters.current_epoch()) if is_of(self.user, subject)
        )
        self.late.update({row: row.prompt_tokens + row.completion_tokens for row in self.late})

    def sweep(self) -> None:
        for row in self.late:
            settle_limits(row)
        self._end_the_late()

    def _end_the_late(self) -> None:
        """The database knows of their ends."""
        self.ended.update({row: row.prompt_tokens + row.completion_tokens for row in self.late})
        self.late.clear()

    def check(self) -> None:
        assert used(self.user) == {"tokens_per_hour": self.tokens}
        assert self.tokens <= LIMIT
        assert set(counters.open_generations(self.user.pk)) == {row.pk for row in (*self.held, *self.late)}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 200), st.integers(1, 500)),
        st.tuples(st.just("finish"), st.integers(0, 9), st.floats(0, 1), st.booleans()),
        st.tuples(st.sampled_from(["lose_everything", "lose_the_window", "sweep"])),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_counters_equal_the_model(echo_model: ServedModel, steps: list[tuple[object, ...]]) -> None:
    user = create_user(email=f"{uuid4().hex}@example.org", password="tall-trees-7")
    user.plan.max_concurrent = 1000
    only_windows(user, ("tokens", LIMIT, 3600))
    model = Model(user, echo_model)
    for name, *arguments in steps:
        getattr(model, str(name))(*arguments)
        model.check()


@pytest.mark.parametrize("window_s", [1])
def test_never_over_in_any_interval_and_hardly_ever_early(user: User, window_s: int) -> None:
    """Three windows' worth of real time at full speed; a third of what is reserved is given back."""
    limit, least, booked, waits, early = 1000, 20, [], [], 0
    only_windows(user, ("tokens", limit, window_s))
    user.plan.max_concurrent = 1000
    end_at, number = monotonic() + 3.2 * window_s, 0
    while monotonic() < end_at:
        number += 1
        name, asked = uuid4(), least + number * 7 % 40
        try:
            found = admit(user, 10, asked, name=name)
        except Refusal as refusal:
            seconds, micros = counters.store().time()
            now = seconds * 1000 + micros // 1000
            recent = sum(tokens for at, tokens in booked if at >= now - 1020 * window_s)
            early += recent + 10 + 16 <= limit
            waits.append(refusal.retry_after)
            continue
        tokens = 10 + found.granted_tokens * 2 // 3
        settle(user, name, tokens)
        booked.append((found.admitted_ms, tokens))
    for at, _ in booked:
        assert sum(tokens for other, tokens in booked if at <= other <= at + 1000 * window_s) <= limit
    assert sum(tokens for _, tokens in booked) > 2.5 * limit
    assert early == 0 and max(waits) <= 1.011 * window_s


# -- what the database knows and the counters do not ------------------------------------------------------------


def test_a_row_whose_reservation_was_lost_is_refused(user: User, echo_model: ServedModel) -> None:
    """A flush between admission and insert: nobody counts it any more, so it must not run."""
    only_windows(user, ("tokens", LIMIT, 3600))
    with (
        pytest.raises(OperationalError),
        transaction.atomic(),
        admitted(
            principal=Principal(user), model=echo_model, prompt_ids=[1] * 10, sampling=Sampling(), asked=None
        ) as row,
    ):
        flush()
        assert used(user) == {"tokens_per_hour": 0}
        submit(row)
    assert used(user) == {"tokens_per_hour": 0} and not Generation.objects.exists()
    assert ask(user, echo_model, 10, 50).grant == 50


def test_the_sweep_settles_what_ended_and_gives_back_what_never_was(
    user: User, echo_model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_windows(user, ("tokens", LIMIT, 3600))
    user.plan.max_concurrent = 10
    running, dead = ask(user, echo_model, 10, 50), ask(user, echo_model, 10, 50)
    finish(dead, 5, is_announced=False)
    admit(user, 10, 50)
    assert used(user) == {"tokens_per_hour": 180}
    sweep_reservations()
    assert used(user) == {"tokens_per_hour": 180}  # all of them are young
    monkeypatch.setattr("inference.tasks.UNWRITTEN_S", -1.0)
    before = REGISTRY.get_sample_value("chatsite_reservations_swept_total")
    swept = sweep_reservations()
    assert swept >= 2
    assert REGISTRY.get_sample_value("chatsite_reservations_swept_total") == before + swept
    assert used(user) == {"tokens_per_hour": 60 + 15}
    assert counters.open_generations(user.pk) == [running.pk]


def test_drift_is_found_and_repaired(user: User, echo_model: ServedModel) -> None:
    only_windows(user, ("tokens", LIMIT, 3600))
    user.plan.max_concurrent = 10
    finish(ask(user, echo_model, 10, 50), 20)
    ask(user, echo_model, 10, 50)
    admit(user, 10, 50)  # without a row yet: no drift
    assert used(user) == {"tokens_per_hour": 150}
    reconcile_limits()  # whatever other tests have left
    assert reconcile_limits() == 0
    key = next(key for key, subject, _ in counters.window_keys(counters.current_epoch()) if is_of(user, subject))
    counters.store().hincrby(key, next(name for name in counters.store().hkeys(key) if name[:1] == b"t"), 100)
    assert used(user) == {"tokens_per_hour": 250}
    before = REGISTRY.get_sample_value("chatsite_limit_windows_drifted_total")
    assert reconcile_limits() == 1
    assert REGISTRY.get_sample_value("chatsite_limit_windows_drifted_total") == before + 1
    assert used(user) == {"tokens_per_hour": 150}


def test_cancelled_before_its_start_uses_a_request_and_no_tokens(user: User, echo_model: ServedModel) -> None:
    only_windows(user, ("tokens", LIMIT, 3600), ("requests", 9, 3600))
    row = ask(user, echo_model, 10, 50)
    assert end(row, "WAITING", Ending("CANCELLED", "cancelled"))
    settle_limits(row)
    assert used(user) == {"tokens_per_hour": 0, "requests_per_hour": 1}
    flush()
    assert used(user) == {"tokens_per_hour": 0, "requests_per_hour": 1}


def test_titles_are_outside_the_limits(user: User, echo_model: ServedModel) -> None:
    only_windows(user, ("tokens", LIMIT, 3600))
    Generation.objects.create(
        model=echo_model, user=user, organization_id=user.organization_id, purpose="title", prompt_tokens=9, grant=9
    )
    flush()
    assert used(user) == {"tokens_per_hour": 0}
