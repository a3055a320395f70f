"""The token log in a real Valkey: fenced, without gaps, repeatable."""

from uuid import uuid4

import pytest

from inference import shards, token_log, viewers
from inference.protocol import Append, Entry
from inference.token_log import StaleAttempt


def entries(*texts: str) -> tuple[Entry, ...]:
    return tuple(Entry(text, (n,)) for n, text in enumerate(texts))


async def append(generation, attempt, first, *texts):
    result = await token_log.append([Append(generation, attempt, first, entries(*texts))])
    return result[generation]


async def texts(generation, after=0):
    return [entry.text for entry in await token_log.read(generation, after)]


async def test_entries_are_kept_in_order_and_read_from_any_position():
    generation = uuid4()
    assert (await append(generation, 1, 1, "a", "b")).length == 2
    assert (await append(generation, 1, 3, "c")).length == 3
    assert await texts(generation) == ["a", "b", "c"]
    assert await texts(generation, 2) == ["c"]


async def test_an_append_whose_answer_was_lost_may_be_repeated():
    generation = uuid4()
    await append(generation, 1, 1, "a", "b")
    assert (await append(generation, 1, 1, "a", "b", "c")).length == 3
    assert await texts(generation) == ["a", "b", "c"]


async def test_an_append_beyond_the_end_is_refused_with_the_length_it_has():
    generation = uuid4()
    await append(generation, 1, 1, "a")
    assert (await append(generation, 1, 4, "d")).length == 1
    assert await texts(generation) == ["a"]


async def test_a_later_attempt_fences_the_earlier_one_and_finds_what_it_logged():
    generation = uuid4()
    await append(generation, 1, 1, "a")
    opened = await token_log.open_log(generation, 2)
    assert [entry.text for entry in opened.entries] == ["a"]
    assert (await append(generation, 1, 2, "zombie")).is_stale
    assert (await append(generation, 2, 2, "b")).length == 2
    with pytest.raises(StaleAttempt):
        await token_log.open_log(generation, 1)


async def test_many_logs_are_appended_in_one_call_each_with_its_viewers():
    first, second = uuid4(), uuid4()
    assert await viewers.watch([first, second], "web-1") == {first: 0, second: 0}
    await viewers.watch([second], "web-2")
    results = await token_log.append([Append(first, 1, 1, entries("x")), Append(second, 1, 1, entries("é😀"))])
    assert results[first].viewers == ["web-1"]
    assert sorted(results[second].viewers) == ["web-1", "web-2"]
    await viewers.unwatch(second, "web-2")
    assert (await append(second, 1, 2, "z")).viewers == ["web-1"]


async def test_a_closed_log_expires_and_an_open_one_does_not():
    generation = uuid4()
    await append(generation, 1, 1, "a")
    store = shards.stores()[0]
    assert await store.ttl(f"log:{generation}") == -1
    await token_log.close_log(generation, 60)
    assert 0 < await store.ttl(f"log:{generation}") <= 60
    await token_log.open_log(generation, 2)
    assert await store.ttl(f"log:{generation}") == -1
