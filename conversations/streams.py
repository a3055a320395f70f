"""Which generation of a conversation a native stream follows, and from where. SSE and WebSocket share this."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from time import monotonic
from urllib.parse import parse_qs
from uuid import UUID

from billing.errors import Refusal, not_found
from conversations.http import Scope, header, hop
from conversations.models import Conversation, Message
from inference import metrics, relay
from inference.models import Generation
from inference.protocol import Event
from inference.rows import row_of


@dataclass(frozen=True)
class Position:
    """What a reader has: the first `after` frames of `generation` (None: the newest one)."""

    generation: UUID | None = None
    after: int = 0


@dataclass(frozen=True)
class Found:
    """What a reader is told. `events` is the whole stream where the message, not the relay, keeps the text."""

    generation: UUID
    after: int
    events: tuple[Event, ...] | None = None


def position_of(scope: Scope) -> Position:
    """What the request says the reader has: Last-Event-ID, which EventSource sends by itself, before the query.

    Raises Refusal (invalid_position, 400).
    """
    last = header(scope, b"last-event-id")
    if last:
        generation, _, after = last.rpartition(":")
    else:
        query = parse_qs(scope["query_string"].decode("latin1"))
        generation, after = (query.get(name, [""])[0] for name in ("generation", "last_seq_id"))
    param = "generation"
    try:
        named = UUID(generation) if generation else None
        param = "last_seq_id"
        return Position(named, max(0, int(after or 0)))
    except ValueError:
        raise Refusal("invalid_position", "This is not a position in a stream.", param=param) from None


def find_stream(conversation: Conversation, position: Position) -> Found | None:
    """Where to read from; None when the conversation has no generation yet.

    Raises Refusal (not_found) for a generation that is not this conversation's.
    """
    answers = Message.objects.filter(conversation=conversation, generation__isnull=False)
    if position.generation:
        answers = answers.filter(generation_id=position.generation)
    answer = answers.select_related("generation").defer("generation__prompt").order_by("-created_at", "-id").first()
    if answer is None or answer.generation is None:
        if position.generation:
            raise not_found("generation")
        return None
    kept = _kept(answer, answer.generation, position.after) if answer.generation.purged_at else None
    return Found(answer.generation.pk, position.after, kept)


def _kept(answer: Message, generation: Generation, after: int) -> tuple[Event, ...]:
    """The events of an answer whose log is gone, for a reader who has `after` frames of it."""
    end = row_of(generation).terminal_event()
    if 0 < after == end.seq:
        return (end,)
    return (Event("snapshot", generation.pk, end.seq, {"text": answer.content}), end)


@asynccontextmanager
async def following(found: Found, *, comes_back: bool = False) -> AsyncIterator[AsyncIterator[Event]]:
    """The events, to the end; for who `comes_back`, to the end of this process (relay.watching).

    Raises Refusal (unavailable) on entering when the relay cannot be reached.
    """
    if found.events is not None:
        yield _told(_replay(found.events), is_whole=False)
        return
    async with (
        relay.watching(found.generation, comes_back=comes_back) as reader,
        aclosing(reader.events(found.after)) as events,
    ):
        yield _told(events, is_whole=found.after == 0)


async def _told(events: AsyncIterator[Event], *, is_whole: bool) -> AsyncIterator[Event]:
    """The end of an answer that a limit cut short says when that limit renews.

    `is_whole`: from its beginning; who was here before the first token has waited for it.
    """
    began, waits = monotonic(), is_whole
    async for event in events:
        if waits and event.kind in ("delta", "snapshot"):
            waits = False
            if event.kind == "delta":
                metrics.reader_first_token.labels("native").observe(monotonic() - began)
        if event.kind == "done" and event.data["finish_reason"] == "limit_reached":
            event = replace(event, data={**event.data, **await hop(_renewal, event.generation)})
        yield event


def _renewal(generation: UUID) -> dict[str, str]:
    found = Generation.objects.filter(pk=generation).values_list("renews_at", flat=True).first()
    return {"renews_at": found.isoformat()} if found else {}


async def _replay(events: tuple[Event, ...]) -> AsyncIterator[Event]:
    for event in events:
        yield event


def error_event(refusal: Refusal, generation: UUID, seq: int) -> Event:
    """The end of a stream that broke off after it began; the reader may resume at `seq`."""
    return Event("error", generation, seq, {"code": refusal.code, "message": refusal.message})
