"""How fast the engine frees what is cancelled, by its own figures, with real vLLM: `python -m bench cancel-1 …`."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

from bench.figures import Row, median, percentile
from bench.load import Answer, Client, Connection
from bench.steady import must_be_whole
from bench.vllm_site import SLOTS, VllmSite, long_prompt, stories, story

PREFILL_TOKENS = 3000
_draws = itertools.count(100_000)  # no prompt of another figure
# Starts a request; returns when it is to be cancelled, with its answer and the KV share that it holds.
Moment = Callable[[VllmSite, Connection, Answer], Awaitable[tuple["asyncio.Task[Answer]", float]]]


@dataclass(frozen=True)
class Trial:
    """One cancelled stream. Seconds (monotonic) of the cancel and of its stream's end; KV it held, as a share."""

    at: float
    ended_at: float
    kv_share: float
    status: int


@dataclass(frozen=True)
class Cancelled:
    """Seconds from cancel to the engine's record, of the trials that can be judged, and how far that is beyond the
    engine's step that the record ended; and its step as a rule."""

    latencies: list[float]
    beyond: list[float]
    step: float
    trials: int


def one(vllm: VllmSite, scale: float) -> Row:
    """A single running stream is cancelled."""
    http, host = asyncio.run(_both(vllm, 0, max(5, int(20 * scale)), _answering))
    p50, own = 1000 * median(http.latencies), 1000 * median(host.latencies)
    return Row(
        "cancel → engine's running count and KV blocks, real vLLM, 1 stream",
        "p50 ≤ 50 ms",
        f"p50 {p50:.0f} ms",
        f"EngineHost.cancel: p50 {own:.0f} ms",
        p50 / own,
        p50 <= 50,
        _notes(http, host),
    )


def full(vllm: VllmSite, scale: float) -> Row:
    """One of 32 running streams is cancelled."""
    return _within_a_step(vllm, SLOTS - 1, max(4, int(24 * scale)), _answering, "32 streams")


def prefill(vllm: VllmSite, scale: float) -> Row:
    """A stream is cancelled while the engine still reads its prompt of 3,000 tokens."""
    what = f"in the middle of a prefill of {PREFILL_TOKENS:,} tokens"
    return _within_a_step(vllm, 0, max(4, int(20 * scale)), _reading, what)


def _within_a_step(vllm: VllmSite, others: int, trials: int, moment: Moment, what: str) -> Row:
    http, host = asyncio.run(_both(vllm, others, trials, moment))
    step, values = 1000 * median([http.step, host.step]), [1000 * latency for latency in http.latencies]
    p95, beyond = percentile(values, 95), 1000 * percentile(http.beyond, 95)
    return Row(
        f"cancel → engine's running count and KV blocks, real vLLM, {what}",
        "p95 ≤ one step + 20 ms",
        f"p50 {median(values):.0f} ms, p95 {p95:.0f} ms; beyond its step: p95 {beyond:.0f} ms",
        f"one step of the engine, as a rule: {step:.0f} ms",
        p95 / step,
        beyond <= 20,
        _notes(http, host),
    )


def _notes(http: Cancelled, host: Cancelled) -> tuple[str, ...]:
    said = []
    for name, found in (("`POST …/{id}/cancel` sent", http), ("EngineHost.cancel called", host)):
        values = [1000 * latency for latency in found.latencies]
        said.append(
            f"From {name}: p50 {percentile(values, 50):.0f}, p90 {percentile(values, 90):.0f}, "
            f"p95 {percentile(values, 95):.0f}, max {max(values):.0f} ms; beyond the step at whose end it was free: "
            f"p50 {1000 * median(found.beyond):.0f}, p95 {1000 * percentile(found.beyond, 95):.0f} ms "
            f"({len(values)} of {found.trials} trials judged; step {1000 * found.step:.0f} ms)."
        )
    return (
        "To the first record of an engine step with fewer running requests and at least half of the stream's KV share "
        "free, looked at in the worker once a millisecond. The verdict is for the HTTP call. A trial is not judged "
        "when another stream began or ended beside it.",
        *said,
    )


# -- trials ---------------------------------------------------------------------------------------------


async def _answering(vllm: VllmSite, stream: Connection, answer: Answer) -> tuple["asyncio.Task[Answer]", float]:
    """After the eighth piece of text."""
    prompt = long_prompt(next(_draws))
    running = asyncio.create_task(stream.request(story(vllm.client, prompt, 200), answer))
    while len(answer.times) < 8 and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    return running, len(prompt.split()) / vllm.watch.call("kv_tokens")


async def _reading(vllm: VllmSite, stream: Connection, answer: Answer) -> tuple["asyncio.Task[Answer]", float]:
    """When half of a long prompt is in the KV cache."""
    share = PREFILL_TOKENS / 2 / vllm.watch.call("kv_tokens")
    # At least a token a word.
    request = story(vllm.client, long_prompt(next(_draws), PREFILL_TOKENS), 200)
    before = vllm.watch.call("kv_usage")
    running = asyncio.create_task(stream.request(request, answer))
    while vllm.watch.call("kv_usage") < before + share and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    if answer.times:
        raise SystemExit("the prompt was read before it could be cancelled")
    return running, share


async def _both(vllm: VllmSite, others: int, trials: int, moment: Moment) -> tuple[Cancelled, Cancelled]:
    """Trials by HTTP and by EngineHost.cancel, in turn, beside `others` running streams."""
    while vllm.watch.call("kv_usage"):  # noqa: ASYNC110 - streams of an earlier figure are being aborted
        await asyncio.sleep(0.05)
    background = Background(vllm.client)
    tasks = [asyncio.create_task(background.run(number)) for number in range(others)]
    await background.running(others, tasks)
    by_http, by_host = [], []
    vllm.watch.call("begin")
    for _ in range(trials):
        by_http.append(await _trial(vllm, moment, by_http=True))
        by_host.append(await _trial(vllm, moment, by_http=False))
    records = vllm.watch.call("end")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return _judge(by_http, records, background.changes), _judge(by_host, records, background.changes)


class Background:
    """Streams that run beside the cancelled ones; one that ends is replaced."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._answers: list[Answer] = []
        self.changes: list[float] = []  # when one began or ended

    async def run(self, number: int) -> None:
        connection = await self._client.connect()
        while True:
            content = stories(1, 1000 * next(_draws) + number)[0]
            answer = Answer()
            self._answers.append(answer)
            await connection.request(story(self._client, content, 1000), answer)
            must_be_whole([answer])
            self.changes += [*answer.times[:1], answer.ended_at]

    async def running(self, count: int, tasks: list[asyncio.Task[None]]) -> None:
        """Until so many have text; raises what a task has raised."""
        while sum(1 for answer in self._answers if answer.times and not answer.ended_at) < count:
            await asyncio.sleep(0.05)
            for task in tasks:
                if task.done():
                    task.result()


async def _trial(vllm: VllmSite, moment: Moment, *, by_http: bool) -> Trial:
    """Start a stream, cancel it at its moment, wait for its end."""
    client, answer = vllm.client, Answer()
    stream, control = await client.connect(), await client.connect()
    running, share = await moment(vllm, stream, answer)
    status = 200
    if by_http:
        at = monotonic()
        status = (await _post_cancel(client, control, answer)).status
    else:
        at = vllm.watch.call("cancel", answer.request_id)
    await running
    stream.close()
    control.close()
    await asyncio.sleep(0.3)
    return Trial(at, answer.ended_at, share, status)


async def _post_cancel(client: Client, control: Connection, answer: Answer) -> Answer:
    request = client.request("POST", f"/v1/chat/completions/{answer.request_id}/cancel", {})
    return await control.request(request, Answer())


def _judge(trials: list[Trial], records: list[tuple[float, int, float]], changes: list[float]) -> Cancelled:
    """Find each trial's record; a step is the time between two. As a rule: their median, while something runs."""
    latencies, beyond = [], []
    for trial in trials:
        assert trial.status == 200, f"the cancel call answered {trial.status}"
        _, running, kv = next(record for record in reversed(records) if record[0] <= trial.at)
        freed = (
            (at, at - before)
            for (before, *_), (at, now, used) in itertools.pairwise(records)
            if at > trial.at and now < running and used <= kv - trial.kv_share / 2
        )
        at, step = next(freed, (None, 0.0))
        if at is not None and not any(trial.at - 1 <= change <= at + 0.2 for change in changes):
            latencies.append(at - trial.at)
            beyond.append(at - trial.at - step)
    steps = [after[0] - before[0] for before, after in itertools.pairwise(records) if before[1] and after[1]]
    return Cancelled(latencies, beyond, median(steps), len(trials))
