"""Who follows what, in a real Valkey: dead processes lapse, and only what was looked at counts as unfollowed."""

from uuid import uuid4

import pytest

from inference import shards, viewers


async def later(generation, seconds):
    """What was written about a generation is this much older."""
    store = shards.store_of(generation)
    for member, score in await store.zrange(f"viewers:{generation}", 0, -1, withscores=True):
        await store.zadd(f"viewers:{generation}", {member: score - seconds * 1000})
    at = await store.hget(f"idle:{generation}", "at")
    if at is not None:
        await store.hset(f"idle:{generation}", "at", int(at) - int(seconds * 1000))


async def test_a_process_that_does_not_renew_lapses():
    generation = uuid4()
    await viewers.watch([generation], "dead")
    await later(generation, viewers.VIEWER_S + 1)
    assert await viewers.find(generation) == []
    await viewers.watch([generation], "alive")
    assert await viewers.find(generation) == ["alive"]
    store = shards.store_of(generation)
    assert await store.zcard(f"viewers:{generation}") == 1
    assert 0 < await store.ttl(f"viewers:{generation}") <= viewers.VIEWER_S  # nothing stays when all are killed


async def test_time_without_a_viewer_adds_up_and_begins_anew_with_one():
    generation = uuid4()
    assert await viewers.look([generation]) == {generation: 0}
    for looks in (1, 2, 3):
        await later(generation, 2)
        assert (await viewers.look([generation]))[generation] == pytest.approx(2 * looks, abs=1)
    await viewers.watch([generation], "web")
    assert await viewers.look([generation]) == {generation: 0}
    await viewers.unwatch(generation, "web")
    assert await viewers.look([generation]) == {generation: 0}


async def test_an_outage_counts_as_one_look_and_a_flush_as_none():
    generation = uuid4()
    await viewers.look([generation])
    await later(generation, 3600)
    assert (await viewers.look([generation]))[generation] <= viewers.LOOK_S
    await shards.store_of(generation).delete(f"idle:{generation}")
    assert await viewers.look([generation]) == {generation: 0}


async def test_who_asked_without_following_begins_the_time_anew():
    generation, other = uuid4(), uuid4()
    await viewers.look([generation, other])
    await later(generation, 3)
    await later(other, 3)
    await viewers.seen([generation])
    found = await viewers.look([generation, other])
    assert found[generation] == 0 and found[other] >= 3
