"""A real engine without a model: scripted, rate-controlled, with faults on order, at some µs per token.

The last "[[key=value …]]" in the last user turn is the order (the vocabulary of bench/mock_openai.py):

  n=100 itl=33.3 ttft=20   numbered tokens "t00000 t00001 …"; milliseconds between them and before the first
  emoji=1 zwj=1 nul=1      each numbered token ends in an emoji, in ZWJ and flag sequences, in a NUL: several
                           token ids, whose bytes arrive in different chunks
  text=…                   this text instead, up to the closing brackets, in chunks of three bytes
  stall=K                  nothing more after K tokens          fail=K   EngineFailed after K tokens
  die=K                    EngineDead for everything            exit=K   the process ends, as by kill -9
  always=1                 the fault strikes every attempt, not only the first

Without an order it repeats the user's words. Other keys are ignored.
"""

import asyncio
import codecs
import heapq
import itertools
import os
import re
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from math import inf

from inference.engine import Chunk, EngineDead, EngineFailed, EngineFinish, Load, Prompt, SchemaRefused
from inference.stop_strings import StopStrings
from inference.templating import ByteTemplate

NUMBERED = 1_000_000  # id NUMBERED + k is the text "t%05d " of k
BARE = 2_000_000  # the same without the space: bytes follow
GRANULARITY_S = 0.001  # one wake-up of the ticker serves all that is due within it
ORDER = re.compile(r"\[\[((?:[a-z]+=.*?)?)\]\]", re.DOTALL)
FAULTS = ("stall", "fail", "die", "exit")
TAILS = {"emoji": "😀", "zwj": "👩‍👩‍👧‍👦🇨🇭👍🏽", "nul": "\0"}


@dataclass(frozen=True)
class Script:
    """What one request produces: all its ids, and for each step the number of ids that are out after it."""

    ids: Sequence[int]
    ends: Sequence[int]
    itl_s: float
    ttft_s: float
    fault: str = ""
    fault_after: int = 0  # tokens of the attempt
    always: bool = False


def read_script(user_text: str) -> Script:
    """The script that a user's text orders. Raises EngineFailed for an order that is not understood."""
    found = ORDER.findall(user_text)
    head, _, text = (found[-1] if found else "").partition("text=")
    order = dict(pair.partition("=")[::2] for pair in head.split())
    try:
        if text or not found:
            ids, ends = _literal(text, 3) if text else _echo(user_text)
        else:
            ids, ends = _numbered(int(order.get("n", 100)), "".join(TAILS[key] for key in TAILS if key in order))
        fault = next((key for key in FAULTS if key in order), "")
        return Script(
            ids,
            ends,
            itl_s=float(order.get("itl", 1000 / 30)) / 1000,
            ttft_s=float(order.get("ttft", 20)) / 1000,
            fault=fault,
            fault_after=int(order[fault]) if fault else 0,
            always="always" in order,
        )
    except ValueError as error:
        raise EngineFailed(f"Bad order for the echo engine: {error}") from None


def _numbered(n: int, tail: str) -> tuple[Sequence[int], Sequence[int]]:
    """`n` numbered tokens; with a tail each is several ids, divided inside the tail's first character."""
    if not tail:
        return range(NUMBERED, NUMBERED + n), range(1, n + 1)
    after = (tail + " ").encode()
    width = 1 + len(after)
    ids = [token for k in range(n) for token in (BARE + k, *after)]
    return ids, [*(k * width + min(3, width - 1) for k in range(n - 1)), n * width]


def _literal(text: str, step: int) -> tuple[Sequence[int], Sequence[int]]:
    ids = text.encode()
    return ids, range(step, len(ids) + step, step)


def _echo(user_text: str) -> tuple[Sequence[int], Sequence[int]]:
    """The user's words, one a step."""
    words = [word.encode() for word in re.findall(r"\s*\S+", f"You said: {user_text}")]
    return b"".join(words), list(itertools.accumulate(map(len, words)))


class _Stream:
    """One running request: what is due, what was taken, and who waits for more."""

    __slots__ = ("_waiter", "alive", "due", "end", "over", "script", "step", "taken")

    def __init__(self, script: Script, emitted: int, end: int) -> None:
        self.script = script
        self.taken = self.due = emitted
        self.end = end  # ids that are out when the stream is over
        self.step = bisect_right(script.ends, emitted)
        self.over = False
        self.alive = True
        self._waiter: asyncio.Future[None] | None = None

    def advance(self) -> bool:
        """A step is due. Returns whether another follows."""
        ends = self.script.ends
        self.due = min(ends[self.step], self.end) if self.step < len(ends) else self.end
        self.step += 1
        self.over = self.due >= self.end
        self.wake()
        return not self.over

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Until the next step or wake()."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
        self._waiter = None

    def take(self) -> tuple[int, ...]:
        """All ids that are due and not yet taken."""
        ids = tuple(self.script.ids[self.taken : self.due])
        self.taken = self.due
        return ids


class EchoEngine:
    """The scripted engine (Engine protocol). `start_s`: seconds that it pretends to load."""

    def __init__(
        self, *, slots: int = 256, context_length: int = 100_000, kv_tokens: int = 100_000_000, start_s: float = 0.0
    ) -> None:
        self.slots = slots
        self.context_length = context_length
        self.kv_tokens = kv_tokens
        self._start_s = start_s
        self._dead = ""
        self._free = asyncio.Semaphore(slots)
        self._waiting = 0
        self._running: dict[_Stream, int] = {}  # → tokens of its prompt
        self._heap: list[tuple[float, int, _Stream]] = []
        self._count = itertools.count()
        self._timer: asyncio.Handle | None = None
        self._ticks_at = inf  # uvloop's handle of a call that is due already does not know when

    async def start(self) -> None:
        await asyncio.sleep(self._start_s)

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        if prompt.sampling.json_schema:
            raise SchemaRefused("The echo engine follows its script.")
        stream = self._open(prompt)
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        self._running[stream] = len(prompt.token_ids)
        self._schedule(asyncio.get_running_loop().time() + stream.script.ttft_s, stream)
        try:
            finish: EngineFinish | None = None
            while finish is None:
                while stream.taken == stream.due and not (stream.over or self._dead):
                    await stream.wait()
                await self._check_faults(stream, prompt)
                ids = stream.take()
                if stream.over and not _faulty(stream.script, prompt):
                    finish = "stop" if stream.end >= len(stream.script.ids) else "length"
                yield Chunk(ids, finish)
        finally:
            stream.alive = False
            del self._running[stream]
            self._free.release()

    def detokenizer(self, prompt_ids: Sequence[int], stop: tuple[str, ...]) -> "EchoDetokenizer":
        return EchoDetokenizer(stop)

    def load(self) -> Load:
        used = sum(prompt + stream.due for stream, prompt in self._running.items())
        return Load(running=len(self._running), waiting=self._waiting, kv_usage=min(1.0, used / self.kv_tokens))

    def pid(self) -> int | None:
        return None

    async def check(self) -> None:
        if self._dead:
            raise EngineDead(self._dead)

    async def stop(self) -> None:
        self._die("The echo engine was stopped.")
        if self._timer is not None:
            self._timer.cancel()

    def _open(self, prompt: Prompt) -> _Stream:
        """Refuse what a real engine refuses; else the stream, which ends at the script's end, limit or fault."""
        if self._dead:
            raise EngineDead(self._dead)
        length = len(prompt.token_ids)
        if prompt.max_tokens < 1 or not 0 < length < self.context_length:
            raise EngineFailed(
                f"A prompt of {length} tokens and {prompt.max_tokens} new ones do not fit {self.context_length}."
            )
        original = prompt.token_ids[: length - prompt.emitted]
        script = read_script(ByteTemplate.last_user_text(original))
        room = min(prompt.max_tokens, self.context_length - length)
        if _faulty(script, prompt):
            room = min(room, script.fault_after)
        return _Stream(script, prompt.emitted, min(len(script.ids), prompt.emitted + room))

    async def _check_faults(self, stream: _Stream, prompt: Prompt) -> None:
        """Strike when the tokens before the fault were taken. Raises EngineFailed, EngineDead, or never returns."""
        if self._dead:
            raise EngineDead(self._dead)
        if not stream.over or stream.taken < stream.due or not _faulty(stream.script, prompt):
            return
        match stream.script.fault:
            case "fail":
                raise EngineFailed("The echo engine failed on order.")
            case "die":
                self._die("The echo engine died on order.")
            case "exit":
                os._exit(70)
        while not self._dead:  # stalled
            await stream.wait()
        raise EngineDead(self._dead)

    def _die(self, why: str) -> None:
        self._dead = self._dead or why
        for stream in self._running:
            stream.wake()

    def _schedule(self, due: float, stream: _Stream) -> None:
        heapq.heappush(self._heap, (due, next(self._count), stream))
        if due < self._ticks_at:
            if self._timer is not None:
                self._timer.cancel()
            self._tick_at(due)

    def _tick_at(self, due: float) -> None:
        self._ticks_at = due
        self._timer = asyncio.get_running_loop().call_at(due, self._tick)

    def _tick(self) -> None:
        """Advance every stream that is due; one timer serves all."""
        loop = asyncio.get_running_loop()
        horizon = loop.time() + GRANULARITY_S / 2
        heap = self._heap
        while heap and heap[0][0] <= horizon:
            due, count, stream = heap[0]
            if stream.alive and stream.advance():
                heapq.heapreplace(heap, (due + stream.script.itl_s, count, stream))
            else:
                heapq.heappop(heap)
        self._timer, self._ticks_at = None, inf
        if heap:
            self._tick_at(max(heap[0][0], loop.time() + GRANULARITY_S))


def _faulty(script: Script, prompt: Prompt) -> bool:
    """Whether the ordered fault strikes this attempt: the first, which has emitted nothing, or always."""
    return bool(script.fault) and (prompt.emitted == 0 or script.always)


class EchoDetokenizer:
    """Bytes and numbered tokens to text (Detokenizer protocol)."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._bytes = codecs.getincrementaldecoder("utf-8")("ignore")
        self._stops = StopStrings(stop)

    def update(self, token_ids: Sequence[int], *, finished: bool) -> str:
        text = "".join(map(self._text, token_ids))
        return self._stops.feed(text, finished=finished)

    @property
    def stopped(self) -> bool:
        return self._stops.stopped

    def _text(self, token: int) -> str:
        if token < 256:
            return self._bytes.decode(bytes((token,)))
        if token >= BARE:
            return f"t{token - BARE:05d}"
        return f"t{token - NUMBERED:05d} " if token >= NUMBERED else ""
