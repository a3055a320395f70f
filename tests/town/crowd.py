"""Many people at once, as careful clients: they send until they are answered, and follow until the end.

A client names its message, so that it may send it again; it reconnects, at the next web process, from where it was;
and it checks that what it was shown never changes. Refusals with Retry-After are what it waits for; anything else that
is not a success is kept, and fails the test.
"""

import asyncio
import json
import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.people import numbers
from tests.site import wait_until

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request of a crowd
TALKERS = 3
PAUSE_S = 0.2
PATIENCE_S = 90.0


@dataclass
class Told:
    """One message and what its sender was told of the answer."""

    chat: uuid.UUID
    n: int  # tokens that were ordered; the echo engine's are numbered
    order: str
    is_real: bool = False  # vLLM answers
    message: uuid.UUID = field(default_factory=uuid.uuid4)
    generation: str = ""
    text: str = ""
    seq: int = 0
    end: dict[str, Any] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    refusals: int = 0
    wrong: list[str] = field(default_factory=list)  # what no server may answer, or show

    def take(self, event: dict[str, Any]) -> bool:
        """One event; whether the answer has ended with it."""
        kind = event["event"]
        self.kinds.add(kind)
        if kind == "error" and event["code"] == "unavailable":
            return False  # of the stream, not of the answer
        if kind == "delta":
            if event["seq"] <= self.seq:
                self.wrong.append(f"frame {event['seq']} after {self.seq}")
            self.text += event["text"]
        elif kind == "snapshot":
            if not event["text"].startswith(self.text):
                self.wrong.append(f"what was shown changed from {self.text[-60:]!r} to {event['text'][-60:]!r}")
            self.text = event["text"]
        self.seq = event["seq"]
        if kind in ("done", "error"):
            self.end = event
        return bool(self.end)

    @property
    def numbers(self) -> list[int]:
        return numbers(self.text)

    @property
    def length(self) -> int:
        """How far it is, in the echo engine's tokens or in words."""
        return len(self.text.split()) if self.is_real else len(self.numbers)

    @property
    def is_whole(self) -> bool:
        reason = self.end.get("finish_reason")
        if self.is_real:
            return bool(self.text) and reason in ("stop", "length") and not self.wrong
        return self.numbers == list(range(self.n)) and reason == "stop" and not self.wrong

    def __repr__(self) -> str:
        return f"<{self.order}: {self.length} of {self.n}, end {self.end}, wrong {self.wrong[:3]}>"


class Crowd:
    """Long answers at once, and a few who ask for short ones as long as those go on; in a thread of its own."""

    def __init__(self, urls: list[str], headers: dict[str, str]) -> None:
        self.long: list[Told] = []
        self.short: list[Told] = []
        self._urls, self._headers = urls, headers
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="crowd", daemon=True)
        self._goes_on = True
        self._most_read = asyncio.Event()  # of those whom the echo engine answers
        self._come: Callable[[], object] = lambda: None
        self._fails: list[BaseException] = []

    @property
    def all(self) -> list[Told]:
        return [*self.long, *self.short]

    def start(self) -> None:
        self._thread.start()

    def wait_for_tokens(self, count: int, of: float = 0.9) -> None:
        """Until a share of the long answers has so many tokens, and each real one has begun and has not ended."""

        real = [told for told in self.long if told.is_real]

        def have() -> bool:
            if self._fails:
                raise self._fails[0]
            begun = all(told.text for told in real)
            return begun and sum(told.length >= count for told in self.long) >= of * len(self.long)

        wait_until(have, f"{count} tokens of the long answers", 30)
        assert not any(told.end for told in real), "the fault must meet them"

    def join(self) -> None:
        """Until everyone has their answer."""
        self._thread.join(PATIENCE_S + 10)
        if self._fails:
            raise self._fails[0]
        assert not self._thread.is_alive(), [told for told in self.all if not told.end]

    async def _run(self) -> None:
        try:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(headers=self._headers, timeout=10, limits=limits) as http:
                async with asyncio.timeout(PATIENCE_S):
                    async with asyncio.TaskGroup() as tasks:
                        loop = asyncio.get_running_loop()
                        self._come = lambda: loop.call_soon_threadsafe(lambda: tasks.create_task(self._talk(http)))
                        self.join_in(TALKERS)
                        await asyncio.gather(*(self._ask(http, told, n) for n, told in enumerate(self.long)))
                        self._goes_on = False
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self._fails.append(error)

    def join_in(self, count: int) -> None:
        """So many more begin to ask for short answers, now."""
        for _ in range(count):
            self._come()

    async def _talk(self, http: httpx.AsyncClient) -> None:
        """Short answers, one after the other, each in a conversation of its own."""
        number = len(self.short)
        while self._goes_on:
            told = Told(uuid.uuid4(), 3, "[[n=3 itl=5 ttft=1]]")
            body = {"id": str(told.chat), "model": "echo", "title": "short"}
            self.short.append(told)
            await self._until_answered(http, told, number, "/api/v1/conversations", body, 201)
            await self._ask(http, told, number)
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, http: httpx.AsyncClient, told: Told, number: int) -> None:
        if told.is_real:
            await self._most_read.wait()  # on a busy machine, a real answer might have ended before the others begin
        path = f"/api/v1/conversations/{told.chat}/messages"
        body: dict[str, Any] = {"content": told.order, "id": str(told.message)}
        if told.is_real:
            body["max_tokens"] = told.n
        sent = await self._until_answered(http, told, number, path, body, 202)
        told.generation = sent["generation"]["id"]
        while not told.end:
            number += 1
            try:
                await self._follow(http, told, self._urls[number % len(self._urls)])
            except httpx.TransportError:
                await asyncio.sleep(PAUSE_S)

    async def _until_answered(
        self, http: httpx.AsyncClient, told: Told, number: int, path: str, body: dict[str, Any], wanted: int
    ) -> dict[str, Any]:
        """Send it, and again while it is refused for now or nobody answers."""
        while True:
            number += 1
            try:
                answer = await http.post(self._urls[number % len(self._urls)] + path, json=body)
            except httpx.TransportError:
                await asyncio.sleep(PAUSE_S)
                continue
            if answer.status_code == wanted:
                return answer.json()
            if answer.status_code in (429, 503) and 1 <= int(answer.headers["Retry-After"]) <= 60:
                told.refusals += 1
            else:
                told.wrong.append(f"{path}: {answer.status_code} {answer.text[:200]}")
            await asyncio.sleep(PAUSE_S)

    async def _follow(self, http: httpx.AsyncClient, told: Told, url: str) -> None:
        path = f"{url}/api/v1/conversations/{told.chat}/stream"
        query = {"generation": told.generation, "last_seq_id": str(told.seq)}
        async with http.stream("GET", path, params=query, timeout=httpx.Timeout(10, read=40)) as answer:
            if answer.status_code != 200:
                if answer.status_code != 503:
                    told.wrong.append(f"{path}: {answer.status_code} {(await answer.aread())[:200]!r}")
                await asyncio.sleep(PAUSE_S)
                return
            async for line in answer.aiter_lines():
                if line.startswith("data: ") and told.take(json.loads(line[6:])):
                    return
                if not self._most_read.is_set():
                    others = [other for other in self.long if not other.is_real]
                    if sum(bool(other.text) for other in others) >= 0.9 * len(others):
                        self._most_read.set()
