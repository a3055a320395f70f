"""One running generation inside a worker: the text it has, what of it is logged, and what is still to be."""

import asyncio
from contextlib import AbstractContextManager
from time import monotonic

from inference.claims import Progress
from inference.endings import Ending
from inference.engine import Chunk, Detokenizer
from inference.logs import bound
from inference.models import Generation
from inference.protocol import Append, Entry, EventKind, FinishReason

Status = Generation.Status
# PostgreSQL refuses NUL, UTF-8 refuses lone surrogates; SmolLM2 has a NUL token.
UNSTORABLE = dict.fromkeys([0, *range(0xD800, 0xE000)])


Packed = tuple[str, tuple[int, ...], FinishReason | None, EventKind]  # the fields of an Entry


def _packed(entry: Entry) -> Packed:
    return entry.text, entry.token_ids, entry.finish, entry.kind


class Live:
    """The state of one attempt. `_entries` is all that the log should hold; `logged` of them it holds."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.prompt_ids = generation.prompt_ids
        # Plain tuples, not Entry: the garbage collector forgets a tuple of texts and numbers, and looks at 300
        # objects of each of 1,000 streams again and again otherwise (measured: stalls of 0.3 s).
        self._entries: list[Packed] = []
        self.logged = 0
        self.cached_tokens = 0
        self.emitted = 0  # token ids in entries and held back
        self.is_stale = False  # a later attempt owns the row: say nothing more
        self.is_cancelled = False
        self.began_at = monotonic()
        self.first_token_at: float | None = None
        self.last_flush_at = 0.0
        self.task: asyncio.Task[Ending | None] | None = None
        self._text = ""
        self._ids: list[int] = []
        self._settled = asyncio.Event()

    def lines(self) -> AbstractContextManager[None]:
        """What is logged in the block belongs to this generation, and to the request that began it."""
        return bound(request=self.generation.request_id, generation=self.generation.pk)

    def resume(self, entries: list[Entry], detokenizer: Detokenizer) -> list[int]:
        """Go on from what the log holds; returns the ids emitted so far, after which the engine continues.

        Text that the ids stand for and that the log lacks is the next to be logged.
        """
        self._entries, self.logged = [_packed(entry) for entry in entries], len(entries)
        ids = [token for entry in entries for token in entry.token_ids]
        self.emitted = len(ids)
        if ids:
            text = detokenizer.update(ids, finished=False).translate(UNSTORABLE)
            self._text = text[len(self.text) :]
        return ids

    @property
    def text(self) -> str:
        """What the log holds or is about to hold."""
        return "".join(text for text, *_ in self._entries)

    @property
    def finish(self) -> FinishReason | None:
        """The finish mark, if the text is complete."""
        return self._entries[-1][2] if self._entries else None

    def add(self, chunk: Chunk, detokenizer: Detokenizer) -> FinishReason | None:
        """Take a chunk in; the reason when it ends the generation."""
        self.first_token_at = self.first_token_at or monotonic()
        self.cached_tokens = max(self.cached_tokens, chunk.cached_tokens)
        self.emitted += len(chunk.token_ids)
        self._ids += chunk.token_ids
        self._text += detokenizer.update(chunk.token_ids, finished=chunk.finish_reason is not None).translate(
            UNSTORABLE
        )
        if detokenizer.stopped:
            return "stop"
        if chunk.finish_reason == "length" and self._was_cut():
            return "limit_reached"
        return chunk.finish_reason

    def _was_cut(self) -> bool:
        asked = self.generation.asked
        return asked is not None and self.generation.grant < asked

    def mark_finished(self, reason: FinishReason) -> None:
        """The text is complete: the next entry is the last."""
        self._close_entry(reason)

    def has_unlogged(self) -> bool:
        return bool(self._text) or self.logged < len(self._entries)

    def append(self) -> Append | None:
        """What to log next, or None. Ids whose text is held back wait for it.

        A stale attempt has nothing to say: the log refuses it as long as it holds the later one, which a flush ends.
        """
        if self.is_stale:
            return None
        if self._text:
            self._close_entry(None)
        if self.logged == len(self._entries):
            return None
        generation = self.generation
        entries = tuple(Entry(*packed) for packed in self._entries[self.logged :])
        return Append(generation.pk, generation.attempt, self.logged + 1, entries)

    def _close_entry(self, finish: FinishReason | None) -> None:
        self._entries.append((self._text, tuple(self._ids), finish, "delta"))
        self._text, self._ids = "", []

    def appended(self, length: int) -> None:
        """The log's length after an append; -1 when a later attempt owns it."""
        self.is_stale = self.is_stale or length < 0
        self.logged = max(0, min(length, len(self._entries)))
        if self.is_stale or self.logged == len(self._entries):
            self._settled.set()

    async def settled(self) -> None:
        """Wait until everything is logged, or the attempt has turned out stale."""
        while self.has_unlogged() and not self.is_stale:
            self._settled.clear()
            await self._settled.wait()

    def progress(self) -> Progress:
        # Never fewer than an earlier attempt has logged, also before this one has read them.
        frames = max(self.logged, self.generation.frames)
        return Progress(self.generation.attempt, self.emitted, self.cached_tokens, frames)

    def ending(self, status: str, reason: FinishReason) -> Ending:
        """How it ended, with everything that was produced for the reader."""
        return Ending(
            status=status,
            finish_reason=reason,
            text=self.text,
            completion_tokens=self.emitted,
            cached_tokens=self.cached_tokens,
            frames=len(self._entries),
        )
