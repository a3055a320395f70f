"""What a reader holds is what the log and the row say, whatever happens to the pushes in between."""

import asyncio
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inference import hub, relay, token_log, viewers
from inference.models import Generation
from inference.protocol import Append, Entry, Frame, Notice
from inference.reader import Reader

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0, "total_tokens": 2}


async def log_frames(generation, texts, first=1):
    entries = tuple(Entry(text, (n,)) for n, text in enumerate(texts))
    await token_log.append([Append(generation, 1, first, entries)])


async def read_all(reader, after=0, *, is_new=False):
    """The text a client would hold, and its last event."""
    text = ""
    async for event in reader.events(after, is_new=is_new):
        if event.kind == "snapshot":
            text = event.data["text"]
        elif event.kind == "delta":
            text += event.data["text"]
    return text, event


deliveries = st.lists(st.sampled_from(["push", "push", "lose", "twice", "late"]), min_size=1, max_size=25)


@hypothesis_settings(deadline=None, max_examples=60)
@given(deliveries, st.integers(1, 400), st.booleans())
def test_lost_doubled_and_late_pushes_are_repaired_from_the_log(fates, buffer_bytes, yields):
    asyncio.run(_push_with(fates, buffer_bytes, yields))


async def _push_with(fates, buffer_bytes, yields):
    from django.test import override_settings

    generation = uuid4()
    texts = [f"t{n:05d}😀 " for n in range(len(fates))]
    reader = Reader(generation)
    with override_settings(STREAM_BUFFER_BYTES=buffer_bytes):
        reading = asyncio.create_task(read_all(reader, is_new=True))
        late = []
        for n, (text, fate) in enumerate(zip(texts, fates, strict=True), 1):
            await log_frames(generation, [text], n)
            frame = Frame(generation, n, "delta", text)
            for _ in range({"push": 1, "twice": 2}.get(fate, 0)):
                reader.offer(frame)
            if fate == "late":
                late.append(frame)
            elif late and fate != "lose":
                reader.offer(late.pop())
            if yields:
                await asyncio.sleep(0)
        reader.offer(Notice(generation, len(texts), "done", {"finish_reason": "stop", "usage": USAGE}))
        text, last = await asyncio.wait_for(reading, 10)
    assert text == "".join(texts)
    assert (last.kind, last.seq) == ("done", len(texts))


async def test_an_end_that_is_told_while_the_log_is_read(monkeypatch):
    """What the read did not find is read again; the row, which may not be there, is not asked."""
    generation, reader = uuid4(), Reader(uuid4())
    reader.generation = generation
    await log_frames(generation, TEXTS[:2])
    read = token_log.read

    async def read_late(which, after=0):
        found = await read(which, after)
        if after == 0:
            await log_frames(generation, TEXTS[2:], 3)
            reader.offer(Notice(generation, 5, "done", {"finish_reason": "stop", "usage": USAGE}))
        return found

    monkeypatch.setattr(token_log, "read", read_late)
    reader.mark_gap()
    text, last = await asyncio.wait_for(read_all(reader, is_new=True), 10)
    assert (text, last.kind, last.seq) == ("".join(TEXTS), "done", 5)


async def test_a_notice_never_names_more_than_the_reader_holds():
    """Else who reconnects from there would miss a frame."""
    reader = Reader(uuid4())
    await log_frames(reader.generation, TEXTS)
    events = reader.events(is_new=True)
    reader.offer(Frame(reader.generation, 1, "delta", TEXTS[0]))
    reader.offer(Notice(reader.generation, 4, "status", {"moved": True}))  # 2 to 4 have not arrived
    reader.offer(Frame(reader.generation, 2, "delta", TEXTS[1]))
    found = [await anext(events) for _ in range(3)]
    assert [(event.kind, event.seq) for event in found] == [("delta", 1), ("status", 1), ("delta", 2)]
    await events.aclose()


@pytest.fixture
def running(transactional_db, user, echo_model):
    return Generation.objects.create(
        user=user, organization_id=user.organization_id, model=echo_model, prompt_tokens=1, grant=9, status="RUNNING"
    )


def end_row(generation, texts):
    Generation.objects.filter(pk=generation.pk).update(
        status="FINISHED", finish_reason="stop", frames=len(texts), text="".join(texts), completion_tokens=len(texts)
    )


async def follow_all(generation, after=0):
    return await asyncio.wait_for(read_all(Follower(generation), after), 10)


class Follower:
    """relay.follow with Reader.events' signature."""

    def __init__(self, generation):
        self.generation = generation

    def events(self, after=0, *, is_new=False):
        return relay.follow(self.generation, after=after)


TEXTS = ["one ", "two ", "drei ", "四 ", "👩‍👩‍👧 "]


@pytest.mark.parametrize("after", range(6))
async def test_a_reconnecting_reader_gets_exactly_what_it_lacks(running, after):
    await log_frames(running.pk, TEXTS)
    await sync_to_async(end_row)(running, TEXTS)
    text, last = await follow_all(running.pk, after)
    assert text == "".join(TEXTS[after:])
    assert (last.kind, last.seq, last.data["finish_reason"]) == ("done", 5, "stop")


@pytest.mark.parametrize("after", [0, 3, 99])
async def test_when_the_log_is_gone_the_row_answers(running, after):
    await sync_to_async(end_row)(running, TEXTS)
    text, last = await follow_all(running.pk, after)
    assert text == "".join(TEXTS)
    assert last.kind == "done"


async def test_a_position_that_never_was_gets_the_whole_text(running):
    await log_frames(running.pk, TEXTS)
    await sync_to_async(end_row)(running, TEXTS)
    events = [event async for event in relay.follow(running.pk, after=99)]
    assert [event.kind for event in events] == ["snapshot", "done"]
    assert events[0].data["text"] == "".join(TEXTS)


async def test_an_end_whose_notice_was_lost_is_found_in_the_row(running):
    following = asyncio.create_task(follow_all(running.pk))
    await log_frames(running.pk, TEXTS)  # nobody pushes
    await sync_to_async(end_row)(running, TEXTS)
    assert (await following)[0] == "".join(TEXTS)


async def test_a_failure_ends_the_stream_as_an_error(running):
    await sync_to_async(Generation.objects.filter(pk=running.pk).update)(
        status="FAILED", finish_reason="error", error_code="engine_failed", error_message="It broke."
    )
    _, last = await follow_all(running.pk)
    assert (last.kind, last.data["code"], last.data["message"]) == ("error", "engine_failed", "It broke.")


async def test_a_published_step_reaches_every_follower(running):
    async with relay.watching(running.pk) as one, relay.watching(running.pk) as two:
        readings = [asyncio.create_task(read_all(reader, is_new=True)) for reader in (one, two)]
        for n, text in enumerate(TEXTS, 1):
            await relay.publish([Append(running.pk, 1, n, (Entry(text),))])
        await relay.end(Notice(running.pk, 5, "done", {"finish_reason": "stop", "usage": USAGE}))
        for text, last in await asyncio.wait_for(asyncio.gather(*readings), 5):
            assert text == "".join(TEXTS)
            assert last.kind == "done"


@pytest.mark.django_db(transaction=True)
async def test_a_reader_that_follows_before_the_row_exists_is_not_told_that_it_is_gone(user, echo_model):
    """Under load, admission takes longer than the check of silent readers."""
    row = Generation(model=echo_model, user=user, organization_id=user.organization_id, prompt_tokens=1, grant=1)
    async with relay.watching(row.pk) as reader:
        await hub.hub().check([row.pk])
        await sync_to_async(row.save)()
        await relay.notify(
            Notice(row.pk, 0, "done", {"finish_reason": "stop", "usage": USAGE}), [await hub.hub().channel()]
        )
        _, end = await read_all(reader, is_new=True)
    assert (end.kind, end.data["finish_reason"]) == ("done", "stop")


async def test_who_leaves_while_viewers_are_renewed_stays_away(running, monkeypatch):
    """A renewal that Valkey sees after the leave would have the answer followed by nobody for VIEWER_S more."""
    readers, reader = hub.hub(), Reader(running.pk)
    await readers.join(reader)
    name, watch, has_left = await readers.channel(), viewers.watch, []

    async def leaves_first(ids, channel):
        if reader in readers._readers.get(running.pk, ()):
            await readers.leave(reader)
            has_left.append(await viewers.find(running.pk))
        return await watch(ids, channel)

    monkeypatch.setattr(viewers, "watch", leaves_first)
    await readers.check([running.pk])
    assert has_left == [[]]  # so it was overtaken
    assert name not in await viewers.find(running.pk)


async def test_who_goes_away_while_joining_is_no_reader(running, monkeypatch):
    """Else the process would renew a reader that nobody is, for ever, and the answer would never be abandoned."""
    joining, watch = asyncio.Event(), viewers.watch

    async def slow_watch(ids, channel):
        lengths = await watch(ids, channel)
        joining.set()
        await asyncio.Event().wait()
        return lengths

    async def read():
        async with relay.watching(running.pk):
            raise AssertionError("nobody joins")

    monkeypatch.setattr(viewers, "watch", slow_watch)
    reading = asyncio.create_task(read())
    await joining.wait()
    assert await viewers.find(running.pk) == [await hub.hub().channel()]
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert running.pk not in hub.hub()._readers
    assert await viewers.find(running.pk) == []
