"""A streaming load client for a site on this machine: many streams in one process, each token verified.

The echo engine answers with numbered tokens, "t00000 t00001 …": what is missing, doubled, reordered or corrupted
in a stream is counted. Times are time.monotonic(), in seconds, which all processes of a machine share.
"""

import asyncio
import json
import re
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httptools

TOKEN = re.compile(r"t(\d{5}) ")
TOKEN_CHARS = 7
TIMEOUT_S = 240.0


def order(n: int, *, itl_ms: float, ttft_ms: float = 20) -> str:
    """A prompt that orders `n` numbered tokens, `itl_ms` apart, the first after `ttft_ms`."""
    return f"[[n={n} itl={itl_ms:g} ttft={ttft_ms:g}]]"


@dataclass
class Answer:
    """One request and what came back; `n` is the number of tokens ordered (None: not numbered)."""

    n: int | None = None
    sent_at: float = 0.0
    ended_at: float = 0.0
    status: int = 0
    request_id: str = ""
    pieces: list[str] = field(default_factory=list)
    times: "array[float]" = field(default_factory=lambda: array("d"))  # arrival of each piece
    usage: dict[str, Any] = field(default_factory=dict)
    finish: str | None = None
    is_done: bool = False
    error: str = ""
    body: bytes = b""  # where the answer was no stream

    @property
    def ttft(self) -> float:
        """Seconds from the request to the first text."""
        return self.times[0] - self.sent_at

    @property
    def tokens(self) -> int:
        """Numbered tokens that arrived."""
        return sum(map(len, self.pieces)) // TOKEN_CHARS

    def arrivals(self) -> Iterator[tuple[int, float]]:
        """(number, arrival) of each numbered token of an undamaged answer."""
        end = count = 0
        for piece, at in zip(self.pieces, self.times, strict=True):
            end += len(piece)
            while (count + 1) * TOKEN_CHARS <= end:
                yield count, at
                count += 1

    def fault(self) -> str:
        """Why this was not a whole answer; empty when it was."""
        if self.error or self.status != 200:
            return self.error or f"status {self.status}: {self.body[:200]!r}"
        return "" if self.finish and self.is_done else "no end"


@dataclass
class Damage:
    """What is wrong in a set of answers: tokens (characters for `corrupted`), and answers that failed."""

    missing: int = 0
    doubled: int = 0
    reordered: int = 0
    corrupted: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self.missing or self.doubled or self.reordered or self.corrupted or self.failed)

    def __str__(self) -> str:
        names = ("missing", "doubled", "reordered", "corrupted")
        counts = ", ".join(f"{getattr(self, name)} {name}" for name in names)
        return counts + (f", failed: {dict(self.failed.most_common(3))}" if self.failed else "")


def verify(answers: list[Answer]) -> Damage:
    """Hold every numbered answer against what was ordered."""
    damage = Damage()
    for answer in answers:
        if fault := answer.fault():
            damage.failed[fault] += 1
        if answer.n is not None:
            _verify_text("".join(answer.pieces), answer.n, damage)
    return damage


def _verify_text(text: str, n: int, damage: Damage) -> None:
    if text == "".join(f"t{k:05d} " for k in range(n)):
        return
    numbers = [int(found[1]) for found in TOKEN.finditer(text)]
    seen = Counter(numbers)
    damage.missing += sum(1 for k in range(n) if k not in seen)
    damage.doubled += sum(count - 1 for count in seen.values())
    damage.reordered += sum(1 for a, b in pairwise(numbers) if b < a)
    damage.corrupted += len(text) - TOKEN_CHARS * len(numbers) + sum(1 for k in seen if k >= n)


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._ended: asyncio.Future[None] | None = None
        self._rest = b""
        self._is_stream = False
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._answer is not None:
            self._answer.error = self._answer.error or f"connection lost: {exc!r}"
            self.on_message_complete()

    def data_received(self, data: bytes) -> None:
        self._now = monotonic()
        self._parser.feed_data(data)

    async def request(self, data: bytes, answer: Answer, timeout_s: float = TIMEOUT_S) -> Answer:
        """Send a request and wait for the whole answer; a failure is in the answer."""
        self._answer, self._rest = answer, b""
        self._ended = asyncio.get_running_loop().create_future()
        answer.sent_at = monotonic()
        self._transport.write(data)
        try:
            await asyncio.wait_for(self._ended, timeout_s)
        except TimeoutError:
            answer.error = "timeout"
            self.close()
        return answer

    def close(self) -> None:
        self._transport.close()

    # -- called by the parser -------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id" and self._answer is not None:
            self._answer.request_id = value.decode()
        elif name.lower() == b"content-type":
            self._is_stream = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        if self._answer is not None:
            self._answer.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            return
        if not self._is_stream:
            answer.body += data
            return
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            _take(answer, event, self._now)

    def on_message_complete(self) -> None:
        if self._answer is not None and self._ended is not None:
            self._answer.ended_at = monotonic()
            self._answer = None
            if not self._ended.done():
                self._ended.set_result(None)


def _take(answer: Answer, event: bytes, now: float) -> None:
    """One event of an OpenAI stream into the answer."""
    data = event[event.find(b"data: ") + 6 :]
    if data == b"[DONE]":
        answer.is_done = True
        return
    found = json.loads(data)
    if "error" in found:
        answer.error = str(found["error"])
        return
    answer.usage = found.get("usage") or answer.usage
    for choice in found["choices"]:
        answer.finish = choice["finish_reason"] or answer.finish
        if content := choice["delta"].get("content"):
            answer.pieces.append(content)
            answer.times.append(now)


class Client:
    """Requests to one site (loopback only) with one API key."""

    def __init__(self, url: str, key: str = "", model: str = "") -> None:
        parts = urlsplit(url)
        assert parts.hostname == "127.0.0.1", "this machine only"
        self._port = parts.port or 80
        self._key, self._model = key, model

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, "127.0.0.1", self._port)
        return connection

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """A request's bytes."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\ncontent-length: {len(data)}\r\n"
        if self._key:
            head += f"authorization: Bearer {self._key}\r\n"
        return (head + "content-type: application/json\r\n\r\n").encode() + data

    def chat(self, content: str, **options: Any) -> bytes:
        """A streamed chat completion's bytes; `options` are fields of its body."""
        messages = [{"role": "user", "content": content}]
        body = {"model": self._model, "stream": True, "messages": messages, **options}
        return self.request("POST", "/v1/chat/completions", body)

    async def closed(self, concurrency: int, until: Callable[[], bool], data: bytes, n: int | None) -> list[Answer]:
        """`concurrency` connections, each repeating the request `data` until `until()`; all answers."""
        answers: list[Answer] = []

        async def repeat() -> None:
            connection = await self.connect()
            while not until() and connection.is_open:
                answers.append(await connection.request(data, Answer(n)))
            connection.close()

        await asyncio.gather(*(repeat() for _ in range(concurrency)))
        return answers

    async def staggered(self, opens: list[tuple[float, bytes, Answer]]) -> list[Answer]:
        """Open each stream so many seconds from now, on a connection of its own; all answers when all have ended."""
        begin = monotonic()

        async def one(after: float, data: bytes, answer: Answer) -> Answer:
            await asyncio.sleep(begin + after - monotonic())
            connection = await self.connect()
            try:
                return await connection.request(data, answer)
            finally:
                connection.close()

        work: list[Awaitable[Answer]] = [one(*item) for item in opens]
        return await asyncio.gather(*work)
