"""One reader of one generation: what was pushed to it, repaired from the log, ended by the row."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from time import monotonic
from uuid import UUID

from channels.db import database_sync_to_async
from django.conf import settings
from redis.exceptions import RedisError

from billing.errors import not_found, unavailable
from inference import metrics, token_log
from inference.protocol import Event, EventKind, Frame, Notice
from inference.queueing import queue_places
from inference.rows import Row, kept_text, look, started_data

log = logging.getLogger(__name__)


class Reader:
    """One reader of one generation: what was pushed and not yet taken, in a bounded buffer.

    A gap, or a reader so slow that its buffer is full, empties the buffer: the rest is read from the log, as one
    piece, when the reader comes back.
    """

    def __init__(self, generation: UUID, *, comes_back: bool = False) -> None:
        self.generation = generation
        self.comes_back = comes_back  # its client resumes by itself when the stream ends early
        self.seq = 0  # what the reader holds, once the buffer is taken
        self.heard_at = math.inf  # until events() begins: the row may not exist yet
        self.checked_at = 0.0  # when it was last held against log and row
        self._known = 0  # frames that it has heard of, held or not
        self._buffer: deque[Frame | Event] = deque()
        self._bytes = 0
        self._has_gap = False
        self._is_lost = False  # the reader must be given the whole text again
        self._is_let_go = False
        self._terminal: Event | None = None
        self._wake = asyncio.Event()
        self._last_place: tuple[object, ...] = ()

    @property
    def has_ended(self) -> bool:
        """It knows that the generation has ended."""
        return self._terminal is not None

    def offer(self, message: Frame | Notice) -> None:
        """A pushed message; what the reader holds already is ignored."""
        self.heard_at = monotonic()
        if isinstance(message, Notice):
            event = Event(message.kind, message.generation, message.seq, message.data)
            if event.is_terminal:
                self.finish(event)
            else:
                self._buffer.append(event)
            self._wake.set()
            return
        self._known = max(self._known, message.seq)
        if message.seq > self.seq and not self._has_gap:
            size = len(message.text.encode())
            if message.seq > self.seq + 1:
                metrics.reader_repairs.labels("gap").inc(self.mark_gap())
            elif self._bytes + size > settings.STREAM_BUFFER_BYTES:
                metrics.reader_repairs.labels("slow").inc(self.mark_gap())
            else:
                self.seq = message.seq
                self._bytes += size
                self._buffer.append(message)
        self._wake.set()

    def mark_gap(self) -> bool:
        """Something is missing: forget the frames in the buffer and read the log instead. False: it does already."""
        is_new = not self._has_gap
        frames = [item.seq for item in self._buffer if isinstance(item, Frame)]
        if frames:
            self.seq = frames[0] - 1
        self._buffer = deque(item for item in self._buffer if isinstance(item, Event))
        self._bytes = 0
        self._has_gap = True
        self._wake.set()
        return is_new

    def let_go(self) -> None:
        """End the stream once what is in the buffer is taken, without a terminal event: its client is to resume."""
        self._is_let_go = True
        self._wake.set()

    def finish(self, event: Event) -> None:
        """The generation ended: `event` is delivered once the text is whole."""
        self._terminal = self._terminal or event
        self._known = max(self._known, event.seq)
        if self.seq < event.seq:
            self.mark_gap()
        self._wake.set()

    def place(self, **data: object) -> None:
        """Where it waits; told again only when it changed."""
        if tuple(data.items()) != self._last_place:
            self._last_place = tuple(data.items())
            self._buffer = deque(item for item in self._buffer if isinstance(item, Frame) or item.kind != "queued")
            self._buffer.append(Event("queued", self.generation, self.seq, data))
            self._wake.set()

    async def events(self, after: int = 0, *, is_new: bool = False) -> AsyncGenerator[Event, None]:
        """Events from `after` on, ending with `done` or `error`, or without either when the reader is let go.

        `is_new`: the generation was made after this reader joined, so there is nothing to catch up with. Events without
        text repeat the position that the reader has by then, whatever they were told with: it resumes from there.
        """
        held = after
        async with aclosing(self._events(after, is_new=is_new)) as events:
            async for event in events:
                if event.is_terminal or "text" in event.data:
                    held = event.seq
                elif event.seq != held:
                    event = replace(event, seq=held)
                yield event

    async def _events(self, after: int, *, is_new: bool) -> AsyncGenerator[Event, None]:
        self.heard_at = monotonic()
        if not is_new:
            async for event in self._begin(after):
                yield event
        while True:
            if self._has_gap and (missing := await self._catch_up()) is not None:
                yield missing
            for event in self._take():
                yield event
            if self._terminal is not None and not self._buffer and not self._has_gap:
                yield Event(self._terminal.kind, self.generation, self.seq, self._terminal.data)
                return
            if self._is_let_go:
                metrics.readers_let_go.inc()
                return
            await self._wake.wait()
            self._wake.clear()

    async def _begin(self, after: int) -> AsyncIterator[Event]:
        """The same for a first load, a reload and a reconnect: the row, then what the log has beyond `after`."""
        self.mark_gap()
        self.seq = after
        row = (await fetch_rows([self.generation])).get(self.generation)
        if row is None:
            raise not_found("generation")
        try:
            entries = await token_log.read(self.generation)
        except RedisError as error:
            raise unavailable() from error
        if after > max(len(entries), row.frames):
            # A position that never was, or whose log the store has lost: begin anew, with the whole text.
            self.seq = after = 0
            self._is_lost = True
        if row.started:
            yield Event("started", self.generation, after, started_data(row.model, row.instead_of))
        if entries and after == 0:
            self.seq, self._is_lost, self._has_gap = len(entries), False, False
            yield Event("snapshot", self.generation, self.seq, {"text": "".join(entry.text for entry in entries)})
        if row.is_ended:
            self.finish(row.terminal_event())

    async def _catch_up(self) -> Event | None:
        """What the log has beyond self.seq, as one event; from the row when the log is gone."""
        # Asked before the log is read: an end that is told meanwhile may name frames that this read did not find.
        end = self._terminal.seq if self._terminal is not None else None
        try:
            entries = await token_log.read(self.generation, self.seq)
        except RedisError as error:
            log.warning("log of %s: %s", self.generation, error)
            self._wake.clear()
            await self._wake.wait()  # the check once a second wakes it
            return None
        if end is not None and (self.seq + len(entries) < end or (self._is_lost and not entries)):
            metrics.reader_repairs.labels("snapshot").inc()
            self.seq, self._is_lost, self._has_gap = end, False, False
            return Event("snapshot", self.generation, end, {"text": await fetch_text(self.generation)})
        if self._is_lost and not entries:
            return None
        kind: EventKind = "snapshot" if self._is_lost else "delta"
        self.seq += len(entries)
        # What was pushed, or ended, while the log was read is the next gap.
        ended = self._terminal.seq if self._terminal is not None else 0
        self._is_lost, self._has_gap = False, self.seq < (self._known if entries else ended)
        text = "".join(entry.text for entry in entries)
        return Event(kind, self.generation, self.seq, {"text": text}) if entries else None

    def _take(self) -> list[Event]:
        """Empty the buffer; neighbouring frames of one kind become one event."""
        events: list[Event] = []
        texts: list[str] = []
        last: Frame | None = None

        def close() -> None:
            if last is not None:
                events.append(Event(last.kind, self.generation, last.seq, {"text": "".join(texts)}))

        while self._buffer:
            item = self._buffer.popleft()
            if isinstance(item, Frame) and last is not None and item.kind == last.kind:
                texts.append(item.text)
                last = item
                continue
            close()
            last, texts = None, []
            if isinstance(item, Frame):
                last, texts = item, [item.text]
            else:
                events.append(item)
        close()
        self._bytes = 0
        return events


async def fetch_rows(generations: list[UUID]) -> dict[UUID, Row]:
    """rows.look in its own thread."""
    rows: dict[UUID, Row] = await database_sync_to_async(look, thread_sensitive=False)(generations)
    return rows


async def fetch_text(generation: UUID) -> str:
    """rows.kept_text in its own thread."""
    text: str = await database_sync_to_async(kept_text, thread_sensitive=False)(generation)
    return text


async def fetch_places(generations: list[UUID]) -> dict[UUID, dict[str, object]]:
    """queueing.queue_places in its own thread."""
    places: dict[UUID, dict[str, object]] = await database_sync_to_async(queue_places, thread_sensitive=False)(
        generations
    )
    return places
