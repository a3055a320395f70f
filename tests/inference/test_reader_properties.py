"""What a reader holds is what the row says: random frames, losses, doubles, reorderings, reconnects, other processes.

The real readers, hubs (one per web process), token log and row; only the pushes between them are in the test's hand.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from channels.db import database_sync_to_async
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inference import shards, token_log
from inference.hub import Hub
from inference.models import Generation
from inference.protocol import Append, Entry, Frame, Notice
from inference.reader import Reader
from inference.rows import look

READERS, WEBS = 3, 2
PIECES = ["a", "é", "四", "😀", "👩‍👩‍👧‍👦", "🇨🇭", " ", "\n\n", "x" * 50]
FATES = ["push", "push", "push", "lose", "twice", "late"]

say = st.tuples(
    st.just("say"),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=3),
    st.lists(st.sampled_from(FATES), min_size=WEBS, max_size=WEBS),
)
reader, web = st.integers(0, READERS - 1), st.integers(0, WEBS - 1)
acts = st.lists(
    st.one_of(
        say,
        say,
        say,
        st.tuples(st.just("reconnect"), reader, web),
        st.tuples(st.just("stop_taking"), reader),
        st.tuples(st.just("take_again"), reader),
        st.tuples(st.just("check"), web),
        st.tuples(st.sampled_from(["deliver_late", "run", "move", "zombie", "lose_log"])),
    ),
    max_size=40,
)


@dataclass
class Client:
    """Somebody with a page: the text, and the position, that the events so far make."""

    world: "World"
    text: str = ""
    seq: int = 0
    ends: list = field(default_factory=list)
    takes: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task | None = None

    async def follow(self, hub: Hub) -> None:
        reader = Reader(self.world.generation.pk)
        await hub.join(reader)
        try:
            async for event in reader.events(self.seq):
                self.take(event)
                await self.takes.wait()
        finally:
            await hub.leave(reader)

    def take(self, event) -> None:
        if event.kind == "snapshot":
            self.text = event.data["text"]
        elif event.kind == "delta":
            self.text += event.data["text"]
        self.seq = event.seq
        # At every moment: no gap, no repeat, and it can say how far it is.
        assert self.world.text.startswith(self.text)
        if event.kind in ("delta", "snapshot"):
            assert self.text == "".join(self.world.entries[: self.seq])
        if event.is_terminal:
            self.ends.append(event)

    async def connect(self, hub: Hub) -> None:
        await self.hang_up()
        if not self.ends:
            self.task = asyncio.create_task(self.follow(hub))

    async def hang_up(self) -> None:
        if self.task is not None and not self.task.done():
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task


class World:
    """One generation, its workers one after the other, two web processes, and a few readers."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.entries: list[str] = []
        self.attempt = 1
        self.late: list[tuple[Hub, Frame]] = []
        self.hubs = [self._hub(number) for number in range(WEBS)]
        self.clients = [Client(self) for _ in range(READERS)]

    @staticmethod
    def _hub(number: int) -> Hub:
        hub = Hub()
        hub._channel = asyncio.get_running_loop().create_future()  # pushes come from here, not from a layer
        hub._channel.set_result(f"web-{number}")
        return hub

    @property
    def text(self) -> str:
        return "".join(self.entries)

    async def begin(self) -> None:
        for number, client in enumerate(self.clients):
            client.takes.set()
            await client.connect(self.hubs[number % WEBS])

    async def say(self, pieces: list[str], fates: list[str]) -> None:
        """As a worker's publisher: log first, from where the log is; then push to who follows."""
        first = len(self.entries) + 1
        self.entries += pieces
        viewers = await self._append(self.attempt, first)
        for hub, name, fate in zip(self.hubs, ("web-0", "web-1"), fates, strict=True):
            if name not in viewers:
                continue
            for seq, piece in enumerate(pieces, first):
                frame = Frame(self.generation.pk, seq, "delta", piece)
                if fate == "late":
                    self.late.append((hub, frame))
                for _ in range({"push": 1, "twice": 2}.get(fate, 0)):
                    hub.deliver(frame)

    async def _append(self, attempt: int, first: int) -> list[str]:
        while True:
            entries = tuple(Entry(piece, (n,)) for n, piece in enumerate(self.entries[first - 1 :], first))
            result = (await token_log.append([Append(self.generation.pk, attempt, first, entries)]))[self.generation.pk]
            if result.length < 0 or result.length >= len(self.entries):
                return result.viewers
            first = result.length + 1  # the store had lost the log, wholly or at its end

    async def reconnect(self, reader: int, web: int) -> None:
        await self.clients[reader].connect(self.hubs[web])

    async def stop_taking(self, reader: int) -> None:
        self.clients[reader].takes.clear()

    async def take_again(self, reader: int) -> None:
        self.clients[reader].takes.set()

    async def check(self, web: int) -> None:
        await self.hubs[web].check([self.generation.pk])

    async def deliver_late(self) -> None:
        while self.late:  # the last first
            hub, frame = self.late.pop()
            hub.deliver(frame)

    async def run(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def move(self) -> None:
        """Another worker goes on, from the log; the earlier one had written all that it had said."""
        await self._append(self.attempt, 1)
        self.attempt += 1
        opened = await token_log.open_log(self.generation.pk, self.attempt)
        assert [entry.text for entry in opened.entries] == self.entries
        for hub in self.hubs:
            hub.deliver(Notice(self.generation.pk, len(self.entries), "status", {"moved": True}))

    async def zombie(self) -> None:
        """A worker that was given up says something else: refused, unless the store has forgotten its successor."""
        if self.attempt == 1 or not await shards.store_of(self.generation.pk).exists(f"attempt:{self.generation.pk}"):
            return
        wrong = Append(self.generation.pk, self.attempt - 1, len(self.entries) + 1, (Entry("WRONG"),))
        assert (await token_log.append([wrong]))[self.generation.pk].is_stale

    async def lose_log(self) -> None:
        await shards.store_of(self.generation.pk).delete(f"log:{self.generation.pk}", f"viewers:{self.generation.pk}")

    async def end(self, fate: str, *, log_is_gone: bool) -> None:
        """The row first, then the log's expiry and the notice, which may be lost."""
        await database_sync_to_async(Generation.objects.filter(pk=self.generation.pk).update, thread_sensitive=False)(
            status="FINISHED", finish_reason="stop", frames=len(self.entries), text=self.text
        )
        if log_is_gone:
            await self.lose_log()
        await token_log.close_log(self.generation.pk, 60)
        row = (await database_sync_to_async(look, thread_sensitive=False)([self.generation.pk]))[self.generation.pk]
        event = row.terminal_event()
        for hub in self.hubs:
            if fate == "push":
                hub.deliver(Notice(self.generation.pk, event.seq, event.kind, event.data))
        for client in self.clients:
            client.takes.set()

    async def wait_for_ends(self) -> None:
        for client in self.clients:
            assert client.task is not None
            while not client.task.done():
                for web in range(WEBS):
                    await self.check(web)
                await asyncio.wait([client.task], timeout=0.005)
            client.task.result()


async def live_through(generation: Generation, acts: list, fate: str, log_is_gone: bool, ask_again: int) -> None:
    world = World(generation)
    await world.begin()
    async with asyncio.timeout(30):
        for name, *arguments in acts:
            await getattr(world, name)(*arguments)
        await world.end(fate, log_is_gone=log_is_gone)
        await world.wait_for_ends()
        for client in world.clients:
            assert client.text == world.text
            (end,) = client.ends
            assert (end.kind, end.seq, end.data["finish_reason"]) == ("done", len(world.entries), "stop")
        # And who comes later, from any position that was, or never was.
        held = Client(world, text="".join(world.entries[:ask_again]), seq=ask_again)
        held.takes.set()
        await held.connect(world.hubs[0])
        world.clients = [held]
        await world.wait_for_ends()
        assert held.text == world.text and len(held.ends) == 1


@pytest.mark.django_db(transaction=True)
@hypothesis_settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    acts=acts,
    fate=st.sampled_from(["push", "lose"]),
    log_is_gone=st.booleans(),
    ask_again=st.integers(0, 130),
    buffer_bytes=st.integers(1, 300),
)
def test_what_a_reader_holds_is_what_the_row_says(
    user, echo_model, settings, acts, fate, log_is_gone, ask_again, buffer_bytes
):
    settings.STREAM_BUFFER_BYTES = buffer_bytes
    generation = Generation.objects.create(
        user=user, organization_id=user.organization_id, model=echo_model, prompt_tokens=1, grant=9, status="RUNNING"
    )
    asyncio.run(live_through(generation, acts, fate, log_is_gone, ask_again))
