"""Who goes next: properties of the pure policy, over arbitrary queues."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling import AGED_EVERY, Capacity, Running, Waiting, may_queue, pick

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
served = st.dictionaries(st.sampled_from(USERS), st.floats(0, 1e6))
starts = st.integers(0, 100)


def candidate(n: int, user: int = 0, band: int = 0, **facts: object) -> Waiting:
    values: dict[str, object] = {"tokens": 10, "waited_s": 1.0, "boost_s": 20.0} | facts
    return Waiting(id=UUID(int=n), user_id=USERS[user], band=band, **values)  # type: ignore[arg-type]


@given(waiting, running, capacity, served, starts)
def test_never_starts_what_the_worker_cannot_hold(w, r, c, s, n):
    choice = pick(w, r, c, s, n)
    if choice is None:
        return
    assert len(r) < c.slots
    assert not r or sum(job.tokens for job in r) + choice.tokens <= c.kv_tokens
    assert not (choice.is_suspect and r)


@given(waiting, running, capacity, served, starts)
def test_the_reserve_is_never_lent_not_even_to_aged_rows(w, r, c, s, n):
    choice = pick(w, r, c, s, n)
    if choice is not None:
        assert sum(1 for job in r if job.band <= choice.band) < c.slots_for(choice.band)


@given(waiting, capacity, served, starts)
def test_an_idle_worker_starts_something_if_anything_waits(w, c, s, n):
    assert (pick(w, [], c, s, n) is None) == (not w)


@given(waiting, running, capacity, served, starts, st.randoms())
def test_the_order_of_the_queue_is_irrelevant(w, r, c, s, n, random):
    shuffled = list(w)
    random.shuffle(shuffled)
    assert pick(w, r, c, s, n) == pick(shuffled, r, c, s, n)


def test_a_higher_band_goes_first_and_the_least_served_user_within_a_band():
    queue = [candidate(1, user=0), candidate(2, user=1), candidate(3, user=2, band=1)]
    counters = {USERS[0]: 500.0, USERS[1]: 100.0}
    space = Capacity(slots=4, kv_tokens=1000)
    assert pick(queue, [], space, counters) == queue[2]
    assert pick(queue[:2], [], space, counters) == queue[1]


def test_what_a_user_is_being_served_now_counts_too():
    queue = [candidate(1, user=0), candidate(2, user=1)]
    running_now = [Running(USERS[0], 0, 400)]
    assert pick(queue, running_now, Capacity(4, 1000), {}) == queue[1]


def test_an_aged_request_gets_every_kth_start():
    queue = [candidate(1, user=0, waited_s=60.0), candidate(2, user=1, band=2)]
    chosen = [pick(queue, [], Capacity(4, 1000), {}, n) for n in range(AGED_EVERY)]
    assert chosen == [queue[1]] * (AGED_EVERY - 1) + [queue[0]]


def test_a_warm_conversation_wins_among_equals_only():
    cold, warm = candidate(1, user=0, waited_s=5.0), candidate(2, user=1, is_warm=True)
    assert pick([cold, warm], [], Capacity(4, 1000), {}) == warm
    assert pick([cold, warm], [], Capacity(4, 1000), {USERS[1]: 1.0}) == cold


def test_a_suspect_runs_alone():
    suspect = candidate(1, is_suspect=True)
    beside = [Running(USERS[1], 0, 10)]
    assert pick([suspect], beside, Capacity(4, 1000), {}) is None
    assert pick([suspect], [], Capacity(4, 1000), {}) == suspect
    assert pick([candidate(2)], [Running(USERS[1], 0, 10, is_suspect=True)], Capacity(4, 1000), {}) is None


def test_free_traffic_may_fill_what_is_not_reserved_above_and_at_least_one_slot():
    assert Capacity(10, 1, {2: 0.2, 1: 0.1}).slots_for(0) == 7
    assert Capacity(10, 1, {2: 0.2, 1: 0.1}).slots_for(1) == 8
    assert Capacity(10, 1, {2: 0.2, 1: 0.1}).slots_for(2) == 10
    assert Capacity(2, 1, {2: 1.0}).slots_for(0) == 1


def test_a_full_queue_takes_no_more():
    assert may_queue(9, 10)
    assert not may_queue(10, 10)
