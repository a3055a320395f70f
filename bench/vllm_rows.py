"""The figures with real vLLM: what the site takes from its throughput, how fast it frees what is cancelled, memory."""

import asyncio
import itertools
import time
from dataclasses import dataclass
from time import monotonic

from bench.figures import Row, median, percentile, spread
from bench.load import Answer, Client, Connection
from bench.steady import bare_server, must_be_whole
from bench.vllm_site import SLOTS, VllmSite, long_prompt, stories

ROUNDS = 3
MAX_TOKENS = 128
TEMPERATURE = 0.7
_draws = itertools.count(1)

__all__ = ["VllmSite", "cancel_full", "cancel_one", "idle", "throughput"]


# -- memory ---------------------------------------------------------------------------------------------


def idle(vllm: VllmSite, scale: float) -> Row:
    """The web process at rest, after a request: then it has loaded the model's tokenizer."""
    fresh = vllm.site.web_rss_mb()
    asyncio.run(_stories(vllm.client, 1, 4))
    time.sleep(2)
    after = vllm.site.web_rss_mb()
    with bare_server(vllm.site) as (_, process):
        bare = process.memory_info().rss / 1e6
    return Row(
        "idle web process",
        "≤ 200 MB",
        f"{after:.0f} MB",
        f"uvicorn with an empty application: {bare:.0f} MB",
        after / bare,
        after <= 200,
        (f"Resident memory (RSS), 2 s after its first answer, the tokenizer loaded; {fresh:.0f} MB before it.",),
    )


# -- throughput -----------------------------------------------------------------------------------------


def throughput(vllm: VllmSite, scale: float) -> Row:
    """32 streams through /v1, and the same prompts to the engine itself, in turn."""
    max_tokens = max(32, int(MAX_TOKENS * scale))
    rates: list[float] = []
    directs: list[float] = []
    lengths = []
    _both(vllm, 16)
    for _ in range(ROUNDS):
        (tokens, seconds), (own_tokens, own_seconds) = _both(vllm, max_tokens)
        rates.append(tokens / seconds)
        directs.append(own_tokens / own_seconds)
        lengths.append(f"{tokens}/{own_tokens}")
    ratio = median(a / b for a, b in zip(rates, directs, strict=True))
    return Row(
        "real vLLM, 32 streams through `/v1`",
        "≥ 0.9 of the engine's tokens/s",
        f"{median(rates):.0f} tokens/s",
        f"the same engine called directly: {median(directs):.0f} tokens/s",
        ratio,
        ratio >= 0.9,
        (
            f"{ROUNDS} rounds, each first direct, then `/v1`: {SLOTS} prompts at once, at most {max_tokens} tokens "
            "each, tokens over the time from the first request to the last token. The ratio is the median of the "
            f"rounds' ratios. `/v1` {spread(rates)}, direct {spread(directs)} tokens/s; tokens `/v1`/direct "
            f"{', '.join(lengths)}.",
            "The direct engine is the same class with the same settings in a process of its own, with the host's "
            "detokenizer; the other one idles meanwhile.",
        ),
    )


def _both(vllm: VllmSite, max_tokens: int) -> tuple[tuple[int, float], tuple[int, float]]:
    """(tokens, seconds) through /v1 and directly, for the same new prompts."""
    draw = next(_draws)
    direct = vllm.direct.call("run", stories(SLOTS, draw), max_tokens, TEMPERATURE)
    answers, seconds = asyncio.run(_stories(vllm.client, SLOTS, max_tokens, draw))
    return (sum(answer.usage["completion_tokens"] for answer in answers), seconds), direct


async def _stories(client: Client, count: int, max_tokens: int, draw: int = 0) -> tuple[list[Answer], float]:
    """The answers, and the seconds from the first request to the last text."""
    requests = [_story(client, content, max_tokens) for content in stories(count, draw)]
    answers = await client.staggered([(0.0, request, Answer()) for request in requests])
    must_be_whole(answers)
    last = max(at for answer in answers for at in answer.times)
    return answers, last - min(answer.sent_at for answer in answers)


def _story(client: Client, content: str, max_tokens: int) -> bytes:
    options = {"temperature": TEMPERATURE, "stream_options": {"include_usage": True}}
    return client.chat(content, max_tokens=max_tokens, **options)


# -- cancelling -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One cancelled stream. Seconds (monotonic) of the cancel and of its stream's end; KV it held, as a share."""

    at: float
    ended_at: float
    kv_share: float
    status: int


@dataclass(frozen=True)
class Cancelled:
    """Seconds from cancel to the engine's record, of the trials that can be judged; and the engine's step."""

    latencies: list[float]
    step: float
    trials: int


def cancel_one(vllm: VllmSite, scale: float) -> Row:
    """A single running stream is cancelled."""
    http, host = asyncio.run(_cancel_both(vllm, 0, max(5, int(20 * scale))))
    p50, own = 1000 * median(http.latencies), 1000 * median(host.latencies)
    return Row(
        "cancel → engine's running count and KV blocks, real vLLM, 1 stream",
        "p50 ≤ 50 ms",
        f"p50 {p50:.0f} ms",
        f"EngineHost.cancel: p50 {own:.0f} ms",
        p50 / own,
        p50 <= 50,
        _cancel_notes(http, host),
    )


def cancel_full(vllm: VllmSite, scale: float) -> Row:
    """One of 32 running streams is cancelled."""
    http, host = asyncio.run(_cancel_both(vllm, SLOTS - 1, max(4, int(12 * scale))))
    p50, step = 1000 * median(http.latencies), 1000 * median([http.step, host.step])
    return Row(
        "cancel → engine's running count and KV blocks, real vLLM, 32 streams",
        "p50 ≤ one step + 20 ms",
        f"p50 {p50:.0f} ms",
        f"one step of the engine: {step:.0f} ms",
        p50 / step,
        p50 <= step + 20,
        _cancel_notes(http, host),
    )


def _cancel_notes(http: Cancelled, host: Cancelled) -> tuple[str, ...]:
    said = []
    for name, found in (("`POST …/{id}/cancel` sent", http), ("EngineHost.cancel called", host)):
        values = [1000 * latency for latency in found.latencies]
        said.append(
            f"From {name}: p50 {percentile(values, 50):.0f}, p90 {percentile(values, 90):.0f}, max {max(values):.0f} "
            f"ms ({len(values)} of {found.trials} trials judged; step {1000 * found.step:.0f} ms)."
        )
    return (
        "To the first record of an engine step with fewer running requests and at least half of the stream's KV share "
        "free, looked at in the worker once a millisecond. The verdict is for the HTTP call. A trial is not judged "
        "when another stream began or ended beside it.",
        *said,
    )


async def _cancel_both(vllm: VllmSite, others: int, trials: int) -> tuple[Cancelled, Cancelled]:
    """Trials by HTTP and by EngineHost.cancel, in turn, beside `others` running streams."""
    background = Background(vllm.client)
    tasks = [asyncio.create_task(background.run(number)) for number in range(others)]
    kv_tokens = vllm.watch.call("kv_tokens")
    await background.running(others, tasks)
    by_http, by_host = [], []
    vllm.watch.call("begin")
    for _ in range(trials):
        by_http.append(await _trial(vllm, kv_tokens, by_http=True))
        by_host.append(await _trial(vllm, kv_tokens, by_http=False))
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
            await connection.request(_story(self._client, content, 1000), answer)
            must_be_whole([answer])
            self.changes += [*answer.times[:1], answer.ended_at]

    async def running(self, count: int, tasks: list[asyncio.Task[None]]) -> None:
        """Until so many have text; raises what a task has raised."""
        while sum(1 for answer in self._answers if answer.times and not answer.ended_at) < count:
            await asyncio.sleep(0.05)
            for task in tasks:
                if task.done():
                    task.result()


async def _trial(vllm: VllmSite, kv_tokens: int, *, by_http: bool) -> Trial:
    """Start a stream with a long prompt, cancel it after its eighth piece of text, wait for its end."""
    client, answer = vllm.client, Answer()
    stream, control = await client.connect(), await client.connect()
    options = {"temperature": TEMPERATURE, "stream_options": {"include_usage": True}}
    request = client.chat(long_prompt(next(_draws)), max_tokens=200, **options)
    running = asyncio.create_task(stream.request(request, answer))
    while len(answer.times) < 8 and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.002)
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
    return Trial(at, answer.ended_at, len(long_prompt(0).split()) / kv_tokens, status)


async def _post_cancel(client: Client, control: Connection, answer: Answer) -> Answer:
    request = client.request("POST", f"/v1/chat/completions/{answer.request_id}/cancel", {})
    return await control.request(request, Answer())


def _judge(trials: list[Trial], records: list[tuple[float, int, float]], changes: list[float]) -> Cancelled:
    """Find each trial's record. The step is the median time between records while something runs."""
    latencies = []
    for trial in trials:
        assert trial.status == 200, f"the cancel call answered {trial.status}"
        _, running, kv = next(record for record in reversed(records) if record[0] <= trial.at)
        freed = (at for at, now, used in records if at > trial.at and now < running and used <= kv - trial.kv_share / 2)
        at = next(freed, None)
        if at is not None and not any(trial.at - 1 <= change <= at + 0.2 for change in changes):
            latencies.append(at - trial.at)
    steps = [after[0] - before[0] for before, after in itertools.pairwise(records) if before[1] and after[1]]
    return Cancelled(latencies, median(steps), len(trials))
