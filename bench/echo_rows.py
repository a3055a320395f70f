"""The figures with the echo engine: latency and CPU that are the site's own, without a model's."""

import asyncio
from time import monotonic

import psutil

from bench.direct import echo_answers
from bench.figures import Row, median, percentile, spread
from bench.load import Answer, Client, order, verify
from bench.site import Site, shares, used_between
from bench.steady import Window, bare_server, lags, measured, must_be_whole, opens_together

ROUNDS = 3
SLOTS = 1024
CROWD = 1000


# -- first token --------------------------------------------------------------------------------------


def first_token(site: Site, scale: float) -> Row:
    """One request at a time, ttft=20, against the engine called directly."""
    requests, p50s, p99s, own = max(20, int(200 * scale)), [], [], []
    client = Client(site.url, site.key, "echo")

    async def measure() -> None:
        await _closed(client, 1, 10, n=2)
        for _ in range(ROUNDS):
            direct = await echo_answers([(2, order(2, itl_ms=1))] * (requests // 2), 1)
            own.append(median(answer.ttft for answer in direct))
            answers = await _closed(client, 1, requests, n=2)
            must_be_whole(answers)
            p50s.append(percentile((answer.ttft for answer in answers), 50) - own[-1])
            p99s.append(percentile((answer.ttft for answer in answers), 99) - own[-1])

    asyncio.run(measure())
    p50, p99, engine = (1000 * median(values) for values in (p50s, p99s, own))
    rounds = f"p50 {spread((1000 * x for x in p50s), '.1f')} ms, p99 {spread((1000 * x for x in p99s), '.1f')} ms"
    return Row(
        "first token over the engine's own, `/v1`, c=1",
        "p50 ≤ 20 ms, p99 ≤ 40 ms",
        f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
        f"engine called directly: p50 {engine:.1f} ms",
        (p50 + engine) / engine,
        p50 <= 20 and p99 <= 40,
        (
            f"Median of {ROUNDS} rounds: {requests} requests one after another on a kept-alive connection, after half "
            f"as many direct calls; both figures are minus the direct p50 (ratio: p50 with it). Rounds: {rounds}.",
        ),
    )


async def _closed(client: Client, concurrency: int, count: int, *, n: int) -> list[Answer]:
    left = iter(range(count))
    return await client.closed(concurrency, lambda: next(left, None) is None, client.chat(order(n, itl_ms=1)), n)


# -- CPU per token --------------------------------------------------------------------------------------


def token_cpu(site: Site, scale: float) -> Row:
    """200 streams of 30 tokens a second; CPU of all processes while all of them run."""
    ramp, length = 8.0, 6 * scale
    client = Client(site.url, site.key, "echo")
    last = ramp + 2 + ROUNDS * length + 1
    opens = opens_together(client, 200, itl_ms=1000 / 30, ramp=ramp, last=last)
    answers, windows = asyncio.run(measured(site, client, opens, ramp + 2, [length] * ROUNDS))
    must_be_whole(answers)
    with bare_server(site) as (bare, process):
        floor = asyncio.run(_bare_cpu(bare, process, length))
    figures = [1e6 * sum(window.used.values()) / window.tokens(answers) for window in windows]
    middle = windows[figures.index(median(figures))]
    return Row(
        "CPU per streamed token, all our processes, 200 streams × 30 tokens/s",
        "≤ 100 µs",
        f"{median(figures):.0f} µs",
        f"an ASGI application under the same uvicorn that writes one chunk per token: {floor:.0f} µs",
        median(figures) / floor,
        median(figures) <= 100,
        (
            f"Median of {ROUNDS} windows of {length:.0f} s in which all 200 streams run: {spread(figures)} µs per "
            f"token that arrived ({middle.tokens(answers) / length:.0f}/s). Opening and ending are in the next row.",
            f"µs by process: {shares(middle.used, middle.tokens(answers))}. Verified: {verify(answers)}.",
        ),
    )


async def _bare_cpu(bare: Client, process: psutil.Process, length: float) -> float:
    """µs per token of the bare server, with 200 such streams."""
    n = int(30 * (length + 2))
    request = bare.request("GET", f"/?n={n}&itl={1000 / 30}&ttft=20")
    running = asyncio.create_task(bare.staggered([(i / 200, request, Answer(n)) for i in range(200)]))
    await asyncio.sleep(1.5)
    began, before = monotonic(), sum(process.cpu_times()[:2])
    await asyncio.sleep(length)
    window = Window(began, monotonic(), {"bare": sum(process.cpu_times()[:2]) - before})
    return 1e6 * window.used["bare"] / window.tokens(await running)


# -- CPU per request --------------------------------------------------------------------------------------


def request_cpu(site: Site, scale: float) -> Row:
    """Short streamed requests, four at a time, against a page without a database."""
    client, page = Client(site.url, site.key, "echo"), Client(site.url)
    short, health = client.chat(order(5, itl_ms=1, ttft_ms=1)), page.request("GET", "/healthz")
    figures: list[float] = []
    floors, parts = [], []

    async def measure() -> None:
        await _closed(client, 4, 20, n=5)
        for _ in range(ROUNDS):
            used, answers = await _cpu_of_closed(site, page, 3 * scale, health, None)
            floors.append(1000 * sum(used.values()) / len(answers))
            used, answers = await _cpu_of_closed(site, client, 8 * scale, short, 5)
            must_be_whole(answers)
            figures.append(1000 * sum(used.values()) / len(answers))
            parts.append(f"{shares(used, len(answers), 1000)}, at {len(answers) / (8 * scale):.0f} requests/s")

    asyncio.run(measure())
    middle = figures.index(median(figures))
    return Row(
        "CPU per short request, all our processes",
        "≤ 25 ms",
        f"{figures[middle]:.1f} ms",
        f"`GET /healthz`: {median(floors):.1f} ms",
        figures[middle] / median(floors),
        figures[middle] <= 25,
        (
            "Streamed `/v1` answers of 5 tokens (ttft=1, itl=1), four at a time, each from the request to the booked "
            f"end. Median of {ROUNDS} runs: {spread(figures, '.1f')} ms. ms by process: {parts[middle]}.",
        ),
    )


async def _cpu_of_closed(
    site: Site, client: Client, seconds: float, data: bytes, n: int | None
) -> tuple[dict[str, float], list[Answer]]:
    end, before = monotonic() + seconds, site.cpu()
    answers = await client.closed(4, lambda: monotonic() > end, data, n)
    return used_between(before, site.cpu()), answers


# -- a thousand streams -----------------------------------------------------------------------------------


def crowd(site: Site, scale: float) -> Row:
    """1,000 streams of 5 frames a second on one web process: how late their tokens are, and whether any is lost."""
    ramp, length, itl_s = 50.0, 20 * scale, 0.2
    client = Client(site.url, site.key, "echo")
    opens = opens_together(client, CROWD, itl_ms=1000 * itl_s, ramp=ramp, last=ramp + 5 + length + 1)
    answers, (window,) = asyncio.run(measured(site, client, opens, ramp + 5, [length]))
    damage = verify(answers)
    steady, opening = _lags(answers, itl_s, window.began, window.ended), _lags(answers, itl_s, 0, window.began - 5)
    p99, own = 1000 * percentile(steady, 99), 1000 * asyncio.run(_engine_lag(itl_s, length))
    return Row(
        "1,000 open streams × 5 frames/s on one web process",
        "p99 lag < 250 ms, nothing lost",
        f"p99 {p99:.0f} ms, {damage}",
        f"engine called directly, as many streams: p99 {own:.0f} ms",
        p99 / own,
        p99 < 250 and not damage,
        (
            f"{CROWD} `/v1` generations on one worker with {SLOTS} slots, one reader each, opened over {ramp:.0f} s; "
            f"then {length:.0f} s with all of them open: {len(steady) / length:.0f} frames/s, lag p50 "
            f"{1000 * percentile(steady, 50):.0f} ms, max {1000 * max(steady):.0f} ms (while they open: p99 "
            f"{1000 * percentile(opening, 99):.0f} ms). Lag: a token's arrival behind its stream's schedule, which is "
            "exact (token k at k × 200 ms) and anchored at the stream's promptest token.",
            f"CPU of the site in that time, in % of a core: {shares(window.used, length, 100)}.",
        ),
    )


def _lags(answers: list[Answer], itl_s: float, begin: float, end: float) -> list[float]:
    return [lag for answer in answers for at, lag in lags(answer, itl_s) if begin <= at < end]


async def _engine_lag(itl_s: float, length: float) -> float:
    """p99 lag in seconds when the engine's chunks are taken in its own process."""
    n = max(10, int(length / itl_s / 2))
    orders = [(n, order(n, itl_ms=1000 * itl_s, ttft_ms=1000 * itl_s * i / CROWD)) for i in range(CROWD)]
    return percentile(_lags(await echo_answers(orders, CROWD), itl_s, 0, float("inf")), 99)
