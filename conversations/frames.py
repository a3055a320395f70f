"""PURE: events as bytes on the wire. What is the same in every frame of a stream is built once."""

import json
from typing import Any
from uuid import UUID

from inference.protocol import Event, FinishReason

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# Line ends to str.splitlines(), by which some SSE clients (httpx's iter_lines) divide a stream.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def to_json(value: Any) -> str:
    """Compact JSON on one line, whatever a client takes for a line's end."""
    text = _encode(value)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def native_json(event: Event) -> str:
    """The native stream's payload of an event."""
    if event.kind == "delta":
        text = to_json(event.data["text"])
        return f'{{"event":"delta","generation":"{event.generation}","seq":{event.seq},"text":{text}}}'
    return to_json(event.to_json())


def native_sse(event: Event) -> bytes:
    """The event as Server-Sent Event; its id is `<generation>:<seq>`."""
    return f"id: {event.generation}:{event.seq}\nevent: {event.kind}\ndata: {native_json(event)}\n\n".encode()


def native_retry(ms: int) -> bytes:
    """Ends a stream that is to be resumed: an EventSource comes back after this time with its Last-Event-ID."""
    return f"retry: {ms}\n\n".encode()


NATIVE_PING = b": ping\n\n"
# One newline: the official client takes a blank line after a comment for the end of an event (DESIGN, /v1).
OPENAI_PING = b": ping\n"
OPENAI_DONE = b"data: [DONE]\n\n"

# OpenAI knows no limit_reached; the chunk then says so in a field of ours.
_OPENAI_REASONS: dict[FinishReason, str] = {"limit_reached": "length"}


def openai_finish(reason: FinishReason, renews_at: str | None = None) -> dict[str, str]:
    """The finish fields of a choice; where a limit cut it short, also when that renews (ISO 8601)."""
    shown = _OPENAI_REASONS.get(reason, reason)
    if shown == reason:
        return {"finish_reason": shown}
    renewal = {"chatsite_renews_at": renews_at} if renews_at else {}
    return {"finish_reason": shown, "chatsite_finish_reason": reason, **renewal}


def openai_usage(usage: dict[str, int]) -> dict[str, Any]:
    """Our usage in OpenAI's shape."""
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage["cached_tokens"]},
    }


def said_instead(model: str) -> dict[str, str]:
    """The field that says which busy model was asked for."""
    return {"instead_of": model} if model else {}


class Chunks:
    """The chunks of one streamed completion, as the `data:` lines of its stream."""

    def __init__(self, request_id: UUID, model: str, created: int, *, has_usage: bool, instead_of: str = "") -> None:
        """`has_usage`: the caller asked for it, so that each chunk before the last has `"usage": null`.

        `instead_of`: the busy model that was asked for, where `model` answers.
        """
        common = {
            "id": str(request_id),
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
            "request_id": str(request_id),
            **said_instead(instead_of),
        }
        self._head = f'data: {to_json(common)[:-1]},"seq":'
        self._end = ',"usage":null}\n\n' if has_usage else "}\n\n"
        self._delta_middle = ',"choices":[{"index":0,"delta":{"content":'
        self._delta_end = '},"logprobs":null,"finish_reason":null}]' + self._end

    def delta(self, seq: int, text: str) -> bytes:
        """New text."""
        return f"{self._head}{seq}{self._delta_middle}{to_json(text)}{self._delta_end}".encode()

    def role(self) -> bytes:
        """The first chunk, before any token exists."""
        return self._choice(0, {"role": "assistant", "content": ""}, {"finish_reason": None})

    def finish(self, seq: int, reason: FinishReason, renews_at: str | None = None) -> bytes:
        """The chunk that ends the choice."""
        return self._choice(seq, {}, openai_finish(reason, renews_at))

    def usage(self, seq: int, usage: dict[str, int]) -> bytes:
        """The last chunk where usage was asked for; it, and only it, has no choice."""
        return f'{self._head}{seq},"choices":[],"usage":{to_json(openai_usage(usage))}}}\n\n'.encode()

    def _choice(self, seq: int, delta: dict[str, Any], finish: dict[str, Any]) -> bytes:
        choice = to_json({"index": 0, "delta": delta, "logprobs": None, **finish})
        return f'{self._head}{seq},"choices":[{choice}]{self._end}'.encode()
