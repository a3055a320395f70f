"""Every message between processes, as frozen dataclasses with one versioned codec.

A message that this version does not know is dropped by its receiver: messages are hints, the row and the log
are the truth, so a new web process beside an old worker (or the other way round) loses time only.
"""

from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

import msgpack

VERSION = 1

FinishReason = Literal["stop", "length", "cancelled", "limit_reached", "content_filter", "tool_calls", "error"]
EventKind = Literal["queued", "started", "status", "delta", "reasoning", "tool_call", "snapshot", "done", "error"]
TopicKind = Literal["chats", "session"]


@dataclass(frozen=True)
class Entry:
    """One frame of a generation's token log: a piece of text and the token ids that produced it.

    The ids are never ahead of the text. The last entry, and only it, carries `finish`: the engine is done, though
    the row may not say so yet.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    kind: EventKind = "delta"

    def pack(self) -> bytes:
        return bytes(msgpack.packb((self.kind, self.text, self.token_ids, self.finish)))

    @classmethod
    def unpack(cls, data: bytes) -> "Entry":
        kind, text, token_ids, finish, *_ = msgpack.unpackb(data)
        return cls(text, tuple(token_ids), finish, kind)


@dataclass(frozen=True)
class Append:
    """A worker's request to append `entries` to a log, the first of them at sequence number `first` (from 1)."""

    generation: UUID
    attempt: int
    first: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Frame:
    """What a web process is pushed of a log entry."""

    generation: UUID
    seq: int
    kind: EventKind
    text: str


@dataclass(frozen=True)
class Notice:
    """What a web process is pushed beside the log: started, moved, or the end (done, error)."""

    generation: UUID
    seq: int
    kind: EventKind
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class News:
    """What a web process is pushed for those who subscribe to `topic`, such as a person's id."""

    topic: UUID
    kind: TopicKind
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cancel:
    """To a worker: abort this generation; its row says so already."""

    generation: UUID


@dataclass(frozen=True)
class Drain:
    """To a worker: take nothing new, end what runs, and leave; its supervisor starts it again."""

    worker: UUID


Message = Frame | Notice | News | Cancel | Drain
_CODES: dict[type, str] = {Frame: "f", Notice: "n", News: "w", Cancel: "c", Drain: "d"}


def encode(messages: list[Message]) -> bytes:
    """One transport message."""
    rows = []
    for message in messages:
        values = list(message.__dict__.values())
        rows.append([_CODES[type(message)], values[0].bytes, *values[1:]])
    return bytes(msgpack.packb([VERSION, rows]))


def decode(data: bytes) -> list[Message]:
    """The inverse of encode; messages of an unknown version or type are left out."""
    version, rows = msgpack.unpackb(data)
    if version != VERSION:
        return []
    types = {code: kind for kind, code in _CODES.items()}
    return [types[code](UUID(bytes=raw), *rest) for code, raw, *rest in rows if code in types]


@dataclass(frozen=True)
class Event:
    """What a reader of a stream is told (DESIGN: events). `seq` is the log position the reader then has."""

    kind: EventKind
    generation: UUID
    seq: int
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The native stream's payload."""
        return {"event": self.kind, "generation": str(self.generation), "seq": self.seq, **self.data}

    @property
    def is_terminal(self) -> bool:
        """The stream ends with this event."""
        return self.kind in ("done", "error")
