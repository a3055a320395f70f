"""Who goes next: properties of the pure policy, over arbitrary queues."""

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling import AGED_EVERY, Capacity, Running, Waiting, count_fitting, may_queue, pick, wait_s

USERS = [UUID(int=n) for n in range(1, 6)]
ids = st.integers(min_value=1000, max_value=2**64).map(lambda n: UUID(int=n))
waiting = st.lists(
    st.builds(
        Waiting,
        id=ids,
        user_id=st.sampled_from(USERS),
        band=st.integers(0, 3),
        tokens=st.integers(1, 500),
        waited_s=st.floats(0, 100),
        boost_s=st.floats(0, 100),
        counter=st.floats(0, 1e6),
        is_suspect=st.booleans(),
        is_warm=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda w: w.id,
)
running = st.lists(
    st.builds(Running, user_id=st.sampled_from(USERS), band=st.integers(0, 3), tokens=st.integers(1, 500)), max_size=8
)
capacity = st.builds(
    Capacity,
    slots=st.integers(1, 8),
    kv_tokens=st.integers(100, 4000),
    reserved=st.dictionaries(st.integers(1, 3), st.floats(0, 0.3), max_size=3),
)
starts = st.integers(0, 100)


def candidate(n: int, user: int = 0, band: int = 0, **facts: object) -> Waiting:
    values: dict[str, object] = {"tokens": 10, "waited_s": 1.0, "boost_s": 20.0} | facts
    return Waiting(id=UUID(int=n), user_id=USERS[user], band=band, **values)  # type: ignore[arg-type]


@given(waiting, running, capacity, starts)
def test_never_starts_what_the_worker_cannot_hold(w, r, c, n):
    choice = pick(w, r, c, n)
    if choice is None:
        return
    assert len(r) < c.slots
    assert not r or sum(job.tokens for job in r) + choice.tokens <= c.kv_tokens
    assert not (choice.is_suspect and r)


@given(waiting, running, capacity, starts)
def test_the_reserve_is_never_lent_not_even_to_aged_rows(w, r, c, n):
    choice = pick(w, r, c, n)
    if choice is not None:
        after = [job.band for job in r] + [choice.band]
        for level in range(choice.band, 4):  # nor by a band in between: what is reserved above every level stays
            assert sum(1 for band in after if band <= level) <= c.slots_for(level)


@given(waiting, running, capacity, starts)
def test_work_conserving_outside_the_reserve(w, r, c, n):
    """If nothing starts, then each that waits has no slot that is its to take, no memory, or must run alone."""
    if pick(w, r, c, n) is not None:
        return
    for candidate in w:
        held = sum(job.tokens for job in r)
        reserved = any(
            sum(1 for job in r if job.band <= level) >= c.slots_for(level) for level in range(candidate.band, 4)
        )
        assert len(r) >= c.slots or reserved or held + candidate.tokens > c.kv_tokens or candidate.is_suspect


@given(waiting, running, capacity)
def test_as_many_are_called_as_would_start_one_after_the_other(w, r, c):
    held, left = list(r), list(w)
    while (choice := pick(left, held, c)) is not None:
        left.remove(choice)
        held.append(Running(choice.user_id, choice.band, choice.tokens, choice.is_suspect))
    assert count_fitting(w, r, c) == len(w) - len(left)


@given(waiting, capacity, starts)
def test_an_idle_worker_starts_something_if_anything_waits(w, c, n):
    assert (pick(w, [], c, n) is None) == (not w)


@given(waiting, running, capacity, starts, st.randoms())
def test_the_order_of_the_queue_is_irrelevant(w, r, c, n, random):
    shuffled = list(w)
    random.shuffle(shuffled)
    assert pick(w, r, c, n) == pick(shuffled, r, c, n)


def test_a_higher_band_goes_first_and_the_least_served_user_within_a_band():
    queue = [candidate(1, user=0), candidate(2, user=1), candidate(3, user=2, band=1)]
    queue = [replace(queue[0], counter=500.0), replace(queue[1], counter=100.0), replace(queue[2], counter=9000.0)]
    space = Capacity(slots=4, kv_tokens=1000)
    assert pick(queue, [], space) == queue[2]
    assert pick(queue[:2], [], space) == queue[1]


def test_among_equals_who_holds_less_goes_first():
    queue = [candidate(1, user=0), candidate(2, user=1)]
    assert pick(queue, [Running(USERS[0], 0, 400)], Capacity(4, 1000)) == queue[1]


def test_an_aged_request_gets_every_kth_start():
    queue = [candidate(1, user=0, waited_s=60.0), candidate(2, user=1, band=2)]
    chosen = [pick(queue, [], Capacity(4, 1000), n) for n in range(AGED_EVERY)]
    assert chosen == [queue[1]] * (AGED_EVERY - 1) + [queue[0]]


def test_a_warm_conversation_wins_among_equals_only():
    cold, warm = candidate(1, user=0, waited_s=5.0), candidate(2, user=1, is_warm=True)
    assert pick([cold, warm], [], Capacity(4, 1000)) == warm
    assert pick([cold, replace(warm, counter=1.0)], [], Capacity(4, 1000)) == cold


def test_a_suspect_runs_alone():
    suspect = candidate(1, is_suspect=True)
    beside = [Running(USERS[1], 0, 10)]
    assert pick([suspect], beside, Capacity(4, 1000)) is None
    assert pick([suspect], [], Capacity(4, 1000)) == suspect
    assert pick([candidate(2)], [Running(USERS[1], 0, 10, is_suspect=True)], Capacity(4, 1000)) is None


def test_one_worker_empties_for_a_suspect_that_waits_too_long():
    """On a worker that is never empty it would wait for ever."""
    others, beside = [candidate(2), candidate(3, band=1)], [Running(USERS[1], 0, 10)]
    patient, fresh = candidate(1, is_suspect=True, waited_s=11.0), candidate(1, is_suspect=True, waited_s=9.0)
    emptying, usual = Capacity(4, 1000, empties=True), Capacity(4, 1000)
    assert pick([patient, *others], beside, emptying) is None
    assert pick([patient, *others], [], emptying) == patient
    assert pick([fresh, *others], beside, emptying) == pick([patient, *others], beside, usual) == others[1]
    assert pick(others, beside, emptying) == others[1]


def test_free_traffic_may_fill_what_is_not_reserved_above_and_at_least_one_slot():
    assert Capacity(10, 1, {2: 0.2, 1: 0.1}).slots_for(0) == 7
    assert Capacity(10, 1, {2: 0.2, 1: 0.1}).slots_for(1) == 8
    assert Capacity(10, 1, {2: 0.2, 1: 0.1}).slots_for(2) == 10
    assert Capacity(2, 1, {2: 1.0}).slots_for(0) == 1


def test_a_band_between_does_not_lend_the_reserve_above_it_either():
    held = [Running(USERS[n % 5], 2, 10) for n in range(8)]  # all that bands up to 2 may have
    space = Capacity(10, 10_000, {3: 0.2})
    assert pick([candidate(1, band=0)], held, space) is None
    assert pick([candidate(1, band=3)], held, space) is not None


def test_a_full_queue_takes_no_more():
    assert may_queue(9, 10)
    assert not may_queue(10, 10)
    assert may_queue(9, 10, wait=None, max_wait_s=5)
    assert may_queue(9, 10, wait=5, max_wait_s=5)
    assert not may_queue(9, 10, wait=5.1, max_wait_s=5)


def test_the_wait_is_none_while_slots_are_free_and_then_the_place_over_the_rate():
    assert wait_s(place=2, free=2, starts_per_s=None) == 0
    assert wait_s(place=5, free=2, starts_per_s=1.5) == 2
    assert wait_s(place=1, free=0, starts_per_s=None) is None
