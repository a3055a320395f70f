"""Kills of a GPU worker under streams, at random points: python -m bench.failover [--kills N] [--terms N] [--vllm N].

Each round streams answers over two workers (50 with the echo engine, 8 with real vLLM), strikes one of them, and waits
until its supervisor's next one serves. The gap is the longest silence of a stream that had to move. Every numbered
token is verified; a real model's text is held against the row's.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import psutil

from bench.figures import Row, document, machine, median, percentile
from bench.limits import told
from bench.load import Answer, Client, Damage, order, verify
from bench.site import Site
from bench.vllm_site import KV_BYTES, MODEL, stories, story

ITL_MS = 33
RAMP_S = 0.5
ROWS = """
import json
from inference.models import Generation
rows = Generation.objects.filter(pk__in={ids})
print("rows", json.dumps([[str(row.pk), row.attempt, row.text, row.completion_tokens] for row in rows]))
"""
READY = """
import json
from django.db.models.functions import Now
from inference.models import Worker
print("ready", json.dumps(Worker.objects.filter(state="READY", lease_until__gt=Now()).count()))
"""


@dataclass(frozen=True)
class Load:
    """What is streamed in each round: so many answers of so many tokens, struck between these seconds."""

    model: str
    streams: int
    tokens: int
    strike_s: tuple[float, float]

    def requests(self, client: Client, turn: int) -> list[tuple[bytes, Answer]]:
        if self.model == "echo":
            request = client.chat(order(self.tokens, itl_ms=ITL_MS), stream_options={"include_usage": True})
            return [(request, Answer(self.tokens)) for _ in range(self.streams)]
        return [(story(client, content, self.tokens), Answer()) for content in stories(self.streams, 1000 + turn)]


ECHO = Load("echo", 50, 120, (0.8, 3.6))
VLLM = Load(MODEL, 8, 320, (1.5, 4.0))


@dataclass
class Outcome:
    """All rounds of one load with one signal."""

    load: Load
    rounds: int = 0
    answers: list[Answer] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)  # seconds, of streams that moved
    differ: int = 0  # texts, or counts of tokens, that are not what the row says

    @property
    def damage(self) -> Damage:
        return verify(self.answers)


def strike_all(site: Site, load: Load, number: signal.Signals, rounds: int, dice: random.Random) -> Outcome:
    """So many rounds, alternating between the two workers."""
    outcome = Outcome(load)
    for turn in range(rounds):
        victim = _workers(site)[turn % 2]
        after_s = dice.uniform(*load.strike_s)
        answers = asyncio.run(_round(site, load, turn, lambda: os.kill(victim.pid, number), after_s))  # noqa: B023
        outcome.rounds += 1
        outcome.answers += answers
        ids = {answer.request_id: answer for answer in answers}
        gaps = []
        for name, attempt, text, tokens in told(site, "rows", ROWS.format(ids=list(ids))):
            answer = ids[name]
            outcome.differ += ("".join(answer.pieces), answer.usage.get("completion_tokens")) != (text, tokens)
            gaps += [_longest_silence(answer)] if attempt > 1 else []
        outcome.gaps += gaps
        said = f"{load.model} {number.name} {turn + 1}: {len(gaps)} moved, longest gap {max(gaps, default=0):.2f} s"
        print(f"{said}; {verify(answers)}", file=sys.stderr, flush=True)
        psutil.wait_procs([victim], timeout=30)
        while told(site, "ready", READY) != 2 or len(_workers(site)) != 2:
            time.sleep(0.2)
    return outcome


async def _round(site: Site, load: Load, turn: int, strike: Callable[[], Any], after_s: float) -> list[Answer]:
    client = Client(site.url, site.key, load.model)
    requests = load.requests(client, turn)
    opens = [(RAMP_S * n / len(requests), *request) for n, request in enumerate(requests)]
    asyncio.get_running_loop().call_later(after_s, strike)
    return await client.staggered(opens)


def _workers(site: Site) -> list[psutil.Process]:
    """The GPU workers' main processes, the older one first."""
    return sorted(site.processes_of("worker"), key=lambda process: process.create_time())


def _longest_silence(answer: Answer) -> float:
    return max(after - before for before, after in pairwise([answer.sent_at, *answer.times]))


def _row(what: str, target_s: float, of: str, outcome: Outcome) -> list[Row]:
    """None where nothing was to be done."""
    gaps, damage, load = outcome.gaps, outcome.damage, outcome.load
    if not outcome.rounds:
        return []
    worst = max(gaps)
    pace = f" at {1000 / ITL_MS:.0f} a second" if load is ECHO else ""
    row = Row(
        what,
        f"gap ≤ {target_s:g} s, nothing lost or doubled",
        f"gap p50 {median(gaps):.2f} s, max {worst:.2f} s; {damage}",
        of,
        worst / target_s,
        worst <= target_s and not damage and not outcome.differ,
        (
            f"{outcome.rounds} rounds of {load.streams} `/v1` streams of {load.tokens} tokens{pace}, "
            f"{len(gaps)} of {len(outcome.answers)} streams moved; gap p90 {percentile(gaps, 90):.2f} s. Gap: the "
            f"longest silence of a moved stream. {outcome.differ} answers whose text or count of tokens is not the "
            "row's.",
        ),
    )
    return [row]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--terms", type=int, default=6)
    parser.add_argument("--vllm", type=int, default=6, help="kills with real vLLM")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the site is stopped in order
    where, dice = machine(), random.Random(arguments.seed)
    rows: list[Row] = []
    # Told to stop, a worker hands back at once what it has: the gap counts from there.
    with Site(engine="echo", slots=64, gpu_workers=2, DRAIN="0") as site:
        killed = strike_all(site, ECHO, signal.SIGKILL, arguments.kills, dice)
        stopped = strike_all(site, ECHO, signal.SIGTERM, arguments.terms, dice)
    rows += _row("a GPU worker killed (kill -9)", 4.5, "the lease: 3 s", killed)
    rows += _row("a GPU worker told to stop (SIGTERM)", 0.5, "the pace of its tokens: 0.03 s", stopped)
    with Site(engine="vllm", slots=8, gpu_workers=2, KV_CACHE_BYTES=str(KV_BYTES), MODEL=MODEL) as site:
        killed = strike_all(site, VLLM, signal.SIGKILL, arguments.vllm, dice)
    rows += _row("the same with real vLLM, both engines on two cores", 6.0, "the lease: 3 s", killed)
    print(document(rows, where, " ".join(["python -m bench.failover", *sys.argv[1:]])))
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
