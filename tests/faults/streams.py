"""A native stream, read as a client reads it."""

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
from django.db import close_old_connections

from tests.people import Person

TOKEN = re.compile(r"t(\d{5}) ")


@dataclass
class Reading:
    """What a reader of one answer holds."""

    text: str = ""
    kinds: list[str] = field(default_factory=list)
    last: dict[str, object] = field(default_factory=dict)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the echo engine's tokens, in order."""
        return [int(number) for number in TOKEN.findall(self.text)]


def ask(person: Person, url: str, content: str, **body: object) -> Iterator[Reading]:
    """Send a message in a new conversation and yield the growing reading after every event."""
    reading = Reading()
    path = f"{url}/api/v1/conversations/{person.chat()}/messages"
    close_old_connections()  # this thread may be one of many
    headers = person.headers | {"Accept": "text/event-stream"}
    with httpx.stream("POST", path, json={"content": content, **body}, headers=headers, timeout=60) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            kind = event.get("event") or event.get("type")
            reading.kinds.append(kind)
            reading.last = event
            if kind == "snapshot":
                reading.text = event["text"]
            elif kind == "delta":
                reading.text += event["text"]
            yield reading


def read_to_end(readings: Iterator[Reading]) -> Reading:
    """The last reading."""
    return deque(readings, maxlen=1).pop()
