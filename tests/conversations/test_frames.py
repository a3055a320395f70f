"""Events as bytes on the wire."""

import json
from uuid import UUID

from conversations.frames import OPENAI_PING, Chunks, native_json, native_sse, openai_finish, to_json
from inference.protocol import Event

ID = UUID(int=7)
ODD = 'a\u2028b\u2029c\x85d\r\ne"\\ 👩‍👩‍👧‍👦 \x1c'


def test_no_client_finds_a_line_end_inside_a_frame() -> None:
    chunks = Chunks(ID, "m", 1, has_usage=False)
    event = Event("delta", ID, 3, {"text": ODD})
    for frame in (chunks.delta(3, ODD).decode(), native_sse(event).decode()):
        data = [line for line in frame.splitlines() if line.startswith("data: ")]
        assert len(data) == 1 and frame.endswith(data[0] + "\n\n")
        assert ODD in (json.loads(data[0][6:]).get("text"), *_contents(json.loads(data[0][6:])))


def _contents(chunk: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    return [choice["delta"]["content"] for choice in chunk.get("choices", [])]


def test_text_stays_short_on_the_wire() -> None:
    assert to_json("你好😀") == '"你好😀"'


def test_fast_path_of_deltas_says_what_the_slow_one_says() -> None:
    event = Event("delta", ID, 3, {"text": ODD})
    assert json.loads(native_json(event)) == event.to_json()


def test_reasons_that_openai_does_not_know_have_a_field_of_their_own() -> None:
    assert openai_finish("limit_reached") == {"finish_reason": "length", "chatsite_finish_reason": "limit_reached"}
    assert openai_finish("stop") == {"finish_reason": "stop"}


def test_heartbeat_is_one_line() -> None:
    assert OPENAI_PING == b": ping\n"
