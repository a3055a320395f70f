"""The queue under load: python -m bench.fairness [--seconds N]. Prints a Markdown table; exit status 1 on a miss.

A local site with the echo engine and two workers. Ten free users hold five times what the free share can run: one
heavy (long prompts, long answers, half of all requests), nine light. A paying user asks now and then. Judged from
the rows: when each was created, started and finished, by the clocks of one machine.
"""

import argparse
import asyncio
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from time import monotonic

import psycopg

from bench.figures import Row, document, machine, percentile
from bench.load import Answer, Client
from bench.site import Site

WORKERS, SLOTS, FREE_SLOTS = 2, 20, 12  # of each worker; the shipped plans reserve 40 %
LIGHT_USERS, LIGHT_OPEN, HEAVY_OPEN = 9, 7, 60
TTFT_MS, ITL_MS = 300, 33.3
WARM_UP_S = 8.0
OUTPUT_WEIGHT = 2  # of inference.scheduling
MAKE_USERS = """
from billing.models import Plan, PlanWindow
from billing.operations import create_user, issue_key
Plan.objects.update(max_concurrent=2000)
PlanWindow.objects.all().delete()  # the queue is measured, not quotas
for n in range({count}):
    user = create_user(email=f"u{{n}}@example.org", password="tall-trees-7")
    if n == 0:
        user.plan = Plan.objects.order_by("band").last()
        user.save()
    print("user", user.pk, issue_key(user=user, name="bench")[1])
"""
ROWS = """
SELECT user_id::text, band, worker_id::text, prompt_tokens, completion_tokens,
       extract(epoch FROM created_at)::float8, extract(epoch FROM started_at)::float8,
       extract(epoch FROM finished_at)::float8
FROM inference_generation WHERE started_at IS NOT NULL AND purpose = 'chat' ORDER BY started_at
"""


@dataclass(frozen=True)
class Job:
    """One generation; times are seconds of one clock."""

    user: str
    band: int
    worker: str
    prompt_tokens: int
    completion_tokens: int
    created: float
    started: float
    finished: float | None

    def seconds_in(self, begin: float, end: float) -> float:
        return max(0.0, min(end, self.finished or end) - max(begin, self.started))


def main() -> int:
    """Load the site, then judge."""
    parser = argparse.ArgumentParser(prog="python -m bench.fairness", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring (60)")
    seconds = parser.parse_args().seconds
    where = machine()
    with Site(engine="echo", slots=SLOTS, gpu_workers=WORKERS) as site:
        people = _people(site)
        paid = asyncio.run(_load(site, [key for _, key in people], WARM_UP_S + seconds))
        jobs = _jobs(site)
    payer, heavy, *light = [user for user, _ in people]
    begin = min(job.started for job in jobs) + WARM_UP_S
    rows = [
        _paid_row([job for job in jobs if job.user == payer], paid),
        _share_row(jobs, [heavy, *light], begin, begin + seconds),
        *_refill_rows([job for job in jobs if job.user != payer], begin, begin + seconds),
    ]
    print(document(rows, where, " ".join(["python -m bench.fairness", *sys.argv[1:]])))
    return 0 if all(row.passed for row in rows) else 1


def _people(site: Site) -> list[tuple[str, str]]:
    """(id, API key) of the payer, the heavy user and the light ones."""
    printed = site.manage("shell", "-v", "0", "-c", MAKE_USERS.format(count=2 + LIGHT_USERS))
    return [(line.split()[1], line.split()[2]) for line in printed.splitlines() if line.startswith("user ")]


async def _load(site: Site, keys: list[str], seconds: float) -> list[Answer]:
    """The flood and the trickle; returns the payer's answers."""
    payer, heavy, *light = [Client(site.url, key, "echo") for key in keys]
    end = monotonic() + seconds

    def order(n: int, itl_ms: float = ITL_MS) -> str:
        return f"[[n={n} itl={itl_ms} ttft={TTFT_MS}]]"

    async def trickle() -> list[Answer]:
        await asyncio.sleep(WARM_UP_S)
        return await payer.closed(1, lambda: monotonic() > end, payer.chat(order(2, 1), max_tokens=100), 2)

    async def flood(client: Client, requests: int, n: int, prefix: str) -> None:
        request = client.chat(prefix + order(n), max_tokens=200)
        await client.closed(requests, lambda: monotonic() > end, request, n)

    tasks = [asyncio.create_task(flood(client, LIGHT_OPEN, 45, "")) for client in light]
    await asyncio.sleep(1)  # the heavy one comes to a site that is in use
    tasks.append(asyncio.create_task(flood(heavy, HEAVY_OPEN, 90, "x" * 600)))
    answers = await trickle()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return answers


def _jobs(site: Site) -> list[Job]:
    url = json.loads((site.folder / "run.json").read_text())["database_url"]
    with psycopg.connect(url) as connection:
        return [Job(*row) for row in connection.execute(ROWS).fetchall()]


def _paid_row(jobs: list[Job], answers: list[Answer]) -> Row:
    waits = [1000 * (job.started - job.created) for job in jobs]
    p50, p99 = percentile(waits, 50), percentile(waits, 99)
    first = [1000 * answer.ttft for answer in answers if answer.times]
    return Row(
        "queue wait of a paid request, free traffic at 5× capacity",
        "p99 ≤ 50 ms",
        f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
        f"its first token, ttft={TTFT_MS}: p50 {percentile(first, 50):.0f} ms, p99 {percentile(first, 99):.0f} ms",
        p99 / 50,
        p99 <= 50 and all(not answer.fault() for answer in answers),
        (f"{len(jobs)} requests one after another; from the row's insert to its start.",),
    )


def _share_row(jobs: list[Job], users: list[str], begin: float, end: float) -> Row:
    """Weighted tokens served within the window: prompts where they started, output while it ran."""
    served: dict[str, float] = defaultdict(float)
    for job in jobs:
        if begin <= job.started < end:
            served[job.user] += job.prompt_tokens
        duration = (job.finished or end) - job.started
        if duration > 0:
            share = job.seconds_in(begin, end) / duration
            served[job.user] += OUTPUT_WEIGHT * job.completion_tokens * share
    shares = [served[user] for user in users]
    jain = sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
    ratio = shares[0] / (sum(shares[1:]) / len(shares[1:]))
    return Row(
        "Jain index of weighted tokens, one heavy and nine light free users",
        "≥ 0.95",
        f"{jain:.3f}",
        f"the heavy user's share over a light one's: {ratio:.2f}",
        jain,
        jain >= 0.95,
        (f"Over {end - begin:.0f} s; the heavy user holds {HEAVY_OPEN} requests, each light one {LIGHT_OPEN}.",),
    )


def _refill_rows(jobs: list[Job], begin: float, end: float) -> list[Row]:
    """Of a worker that holds FREE_SLOTS, start number i + FREE_SLOTS is the one that end number i made room for."""
    gaps = []
    for worker in {job.worker for job in jobs}:
        here = [job for job in jobs if job.worker == worker]
        starts = sorted(job.started for job in here)
        ends = sorted(job.finished for job in here if job.finished is not None)
        pairs = zip(ends, starts[FREE_SLOTS:], strict=False)
        gaps += [1000 * (start - finished) for finished, start in pairs if begin <= finished < end]
    used = sum(job.seconds_in(begin, end) for job in jobs) / (WORKERS * FREE_SLOTS * (end - begin))
    within = sum(gap <= 50 for gap in gaps) / len(gaps)
    p50, p99 = percentile(gaps, 50), percentile(gaps, 99)
    return [
        Row(
            "a free slot is filled",
            "within 50 ms, p99",
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
            f"{100 * within:.1f} % of {len(gaps)} within 50 ms",
            p99 / 50,
            p99 <= 50,
            (
                "From the row's end to the start that it made room for, on the same worker.",
                "Below zero: a worker writes an end after it has started what follows, so that the slot is free for as "
                "long as a claim takes.",
            ),
        ),
        Row("free share in use", "≥ 98 %", f"{100 * used:.1f} %", "all of its slots, all the time", used, used >= 0.98),
    ]


if __name__ == "__main__":
    sys.exit(main())
