"""Kills of a GPU worker under 50 streams, at random points: python -m bench.failover [--kills N] [--terms N].

Each round streams 50 answers over two workers with the echo engine, strikes one of them, and waits until its
supervisor's next one serves. The gap is the longest silence of a stream that had to move. Every token is verified.
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

STREAMS, TOKENS, ITL_MS = 50, 120, 33
RAMP_S = 0.5
MOVED = """
import json
from inference.models import Generation
rows = Generation.objects.filter(attempt__gt=1, pk__in={ids})
print("moved", json.dumps([str(pk) for pk in rows.values_list("pk", flat=True)]))
"""
READY = """
import json
from django.db.models.functions import Now
from inference.models import Worker
print("ready", json.dumps(Worker.objects.filter(state="READY", lease_until__gt=Now()).count()))
"""


@dataclass
class Outcome:
    """All rounds with one signal."""

    rounds: int = 0
    answers: list[Answer] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)  # seconds, of streams that moved

    @property
    def damage(self) -> Damage:
        return verify(self.answers)


def strike_all(site: Site, number: signal.Signals, rounds: int, dice: random.Random) -> Outcome:
    """So many rounds, alternating between the two workers."""
    outcome = Outcome()
    for turn in range(rounds):
        victim = _workers(site)[turn % 2]
        answers = asyncio.run(_round(site, lambda: os.kill(victim.pid, number), dice.uniform(0.8, 3.6)))  # noqa: B023
        outcome.rounds += 1
        outcome.answers += answers
        ids = {answer.request_id: answer for answer in answers}
        moved = told(site, "moved", MOVED.format(ids=list(ids)))
        gaps = [_longest_silence(ids[name]) for name in moved]
        outcome.gaps += gaps
        said = f"{number.name} {turn + 1}: {len(moved)} moved, longest gap {max(gaps, default=0):.2f} s"
        print(f"{said}; {verify(answers)}", file=sys.stderr, flush=True)
        psutil.wait_procs([victim], timeout=30)
        while told(site, "ready", READY) != 2 or len(_workers(site)) != 2:
            time.sleep(0.2)
    return outcome


async def _round(site: Site, strike: Callable[[], Any], after_s: float) -> list[Answer]:
    client = Client(site.url, site.key, "echo")
    request = client.chat(order(TOKENS, itl_ms=ITL_MS), stream_options={"include_usage": True})
    opens = [(RAMP_S * n / STREAMS, request, Answer(TOKENS)) for n in range(STREAMS)]
    asyncio.get_running_loop().call_later(after_s, strike)
    return await client.staggered(opens)


def _workers(site: Site) -> list[psutil.Process]:
    """The GPU workers' main processes, the older one first."""
    return sorted(site.processes_of("worker"), key=lambda process: process.create_time())


def _longest_silence(answer: Answer) -> float:
    return max(after - before for before, after in pairwise([answer.sent_at, *answer.times]))


def _row(what: str, target_s: float, of: str, outcome: Outcome) -> Row:
    gaps, damage = outcome.gaps, outcome.damage
    usages = {answer.usage.get("completion_tokens") for answer in outcome.answers}
    worst = max(gaps)
    return Row(
        what,
        f"gap ≤ {target_s:g} s, nothing lost or doubled",
        f"gap p50 {median(gaps):.2f} s, max {worst:.2f} s; {damage}",
        of,
        worst / target_s,
        worst <= target_s and not damage and usages == {TOKENS},
        (
            f"{outcome.rounds} rounds of {STREAMS} `/v1` streams of {TOKENS} tokens at {1000 / ITL_MS:.0f} a second, "
            f"{len(gaps)} of {len(outcome.answers)} streams moved; gap p90 {percentile(gaps, 90):.2f} s. Gap: the "
            f"longest silence of a moved stream. Usage told: {sorted(map(str, usages))} tokens each.",
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--terms", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the site is stopped in order
    where, dice = machine(), random.Random(arguments.seed)
    # Told to stop, a worker hands back at once what it has: the gap counts from there.
    with Site(engine="echo", slots=64, gpu_workers=2, DRAIN="0") as site:
        killed = strike_all(site, signal.SIGKILL, arguments.kills, dice)
        stopped = strike_all(site, signal.SIGTERM, arguments.terms, dice)
    rows = [
        _row("a GPU worker killed (kill -9)", 4.5, "the lease: 3 s", killed),
        _row("a GPU worker told to stop (SIGTERM)", 0.5, "the pace of its tokens: 0.03 s", stopped),
    ]
    print(document(rows, where, " ".join(["python -m bench.failover", *sys.argv[1:]])))
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
