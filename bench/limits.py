"""One token budget, 1,000 parallel calls from 16 processes over HTTP: python -m bench.limits [--runs N] [--calls N].

Answers settle far below their grants, so that what is refused at first fits later. A caller that is refused tries
again, until it is told that nothing is pending any more: that refusal sticks. Afterwards the ledger, the rows and the
counters are held against the budget. Then the same with a flush of Valkey, and with a kill -9 of a worker.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from bench.figures import Row, document, machine, spread
from bench.load import Answer, Client, order
from bench.site import Site

PROCESSES = 16
ASKED, ANSWER = 200, 20  # output tokens
SERVED_SHARE = 0.8  # of the calls fit into the budget
GIVE_UP_S = 240.0
BEGIN = """
import json
from uuid import uuid4
from billing.models import Plan, PlanWindow
from billing.operations import create_user, issue_key
plan = Plan.objects.create(slug=uuid4().hex[:20], name="budget", band=9, max_concurrent=100_000)
PlanWindow.objects.create(plan=plan, kind="tokens", amount={budget}, seconds=86_400)
user = create_user(email=f"{{plan.slug}}@example.org", password="tall-trees-7")
user.plan, user.plan_is_own = plan, True
user.save()
print("made", json.dumps([str(user.pk), issue_key(user=user, name="bench")[1]]))
"""
END = """
import json
from itertools import accumulate
from django.db.models import F, Sum
from billing import counters
from billing.admission import states_for
from billing.models import LedgerEntry, User
from billing.operations import Principal
from inference.models import Generation
user = User.objects.get(pk="{user}")
TOKENS = F("prompt_tokens") + F("completion_tokens")
rows = list(Generation.objects.filter(user=user).order_by("admitted_at"))
steps = []  # (when, how what is ended or granted changes)
for row in rows:
    steps.append((row.admitted_at, row.prompt_tokens + row.grant))
    if row.finished_at:
        steps.append((row.finished_at, row.completion_tokens - row.grant))
most = max(accumulate(change for _, change in sorted(steps)))
print("end", json.dumps({{
    "ledger": LedgerEntry.objects.filter(user_id=user.pk).aggregate(n=Sum(TOKENS))["n"],
    "counters": states_for(Principal(user))[0].used,
    "open": sum(row.is_open for row in rows),
    "held": len([one for one in counters.held(older_than_s=-1) if one.subjects.user_id == user.pk]),
    "most": most,
    "prompt": rows[0].prompt_tokens,
}}))
"""
FLUSH = "from billing import counters; counters.store().flushall()"
PIDS = """
import json
from inference.models import Worker
found = Worker.objects.filter(state="READY").order_by("started_at")
print("pids", json.dumps(list(found.values_list("pid", flat=True))))
"""
ADMIT = """
import json, time
from uuid import uuid4
from billing import admission
from billing.models import ApiKey
from billing.operations import Principal
key = ApiKey.objects.select_related("user__plan", "user__organization").get(user="{user}")
times = []
for _ in range(500):
    name, began = uuid4(), time.perf_counter()
    admission.admit(generation_id=name, principal=Principal(key.user, key), prompt_tokens=10, room=100, asked=20)
    times.append(time.perf_counter() - began)
    admission.release(principal=Principal(key.user, key), generation_id=name)
print("ms", json.dumps(1000 * sorted(times)[len(times) // 2]))
"""


@dataclass(frozen=True)
class Outcome:
    """One run: what the ledger says in the end, how the calls were answered, and how long it took."""

    budget: int
    ledger: int
    counters: int
    held: int
    most: int  # tokens ended or granted at any moment
    statuses: dict[str, int]
    seconds: float

    @property
    def over(self) -> int:
        return max(0, self.ledger - self.budget, self.most - self.budget)

    @property
    def is_right(self) -> bool:
        used = self.ledger >= 0.99 * self.budget
        return not self.over and used and not self.held and self.counters == self.ledger


# -- the callers -------------------------------------------------------------------------------------------


def call_all(url: str, key: str, calls: int, seed: int) -> list[str]:
    """That many calls at once, in this process; how each ended."""
    return asyncio.run(_call_all(url, key, calls, random.Random(seed)))


async def _call_all(url: str, key: str, calls: int, dice: random.Random) -> list[str]:
    client = Client(url, key, "echo")
    message = {"role": "user", "content": order(ANSWER, itl_ms=2, ttft_ms=20)}
    body = {"model": "echo", "messages": [message], "max_tokens": ASKED}
    data, deadline = client.request("POST", "/v1/chat/completions", body), time.monotonic() + GIVE_UP_S

    async def one() -> str:
        while time.monotonic() < deadline:
            try:
                connection = await client.connect()
                answer = await connection.request(data, Answer())
            except OSError:
                answer = Answer(error="not connected")
            else:
                connection.close()
            if answer.status == 200:
                return "200"
            if answer.status == 429 and _sticks(answer.body):
                return "429 for good"
            if answer.status not in (0, 429, 503):
                return f"{answer.status} {answer.body[:100]!r}"
            await asyncio.sleep(4 + 8 * dice.random())  # Retry-After is 5, and callers need not come at once
        return "gave up"

    return await asyncio.gather(*(one() for _ in range(calls)))


def _sticks(body: bytes) -> bool:
    """Nothing is pending: the budget itself is used up."""
    error = json.loads(body)["error"]
    return str(error["code"]).endswith("_used_up") and error["retry_after"] > 60


# -- one run -----------------------------------------------------------------------------------------------


def told(site: Site, word: str, script: str) -> Any:
    """What a script beside the site prints after `word`, from JSON."""
    said = site.manage("shell", "-v", "0", "-c", script).splitlines()
    return json.loads(next(line.removeprefix(f"{word} ") for line in said if line.startswith(f"{word} ")))


def run(site: Site, calls: int, budget: int, harm: str = "") -> tuple[Outcome, str]:
    """One budget and all callers; `harm`: flush, or kill, in the middle. Also the user's id."""
    user, key = told(site, "made", BEGIN.format(budget=budget))
    began = time.monotonic()
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        shares = [calls // PROCESSES + (i < calls % PROCESSES) for i in range(PROCESSES)]
        work = [pool.submit(call_all, site.url, key, share, seed) for seed, share in enumerate(shares)]
        time.sleep(6 if harm else 0)  # until they are in the middle of it
        if harm == "flush":
            site.manage("shell", "-v", "0", "-c", FLUSH)
        elif harm == "kill":
            os.kill(told(site, "pids", PIDS)[0], signal.SIGKILL)
        ends = Counter(end for one in work for end in one.result())
    deadline = time.monotonic() + 130
    while True:  # reservations whose settling was lost are the sweep's, once a minute
        end = told(site, "end", END.format(user=user))
        if (not end["open"] and not end["held"]) or time.monotonic() > deadline:
            break
        time.sleep(2)
    seconds = time.monotonic() - began
    outcome = Outcome(budget, end["ledger"], end["counters"], end["held"], end["most"], dict(ends), round(seconds))
    print(f"{harm or 'undisturbed'}: {outcome}", file=sys.stderr, flush=True)
    return outcome, user


def row(what: str, outcomes: list[Outcome], calls: int) -> Row:
    used = [100 * outcome.ledger / outcome.budget for outcome in outcomes]
    ends: Counter[str] = Counter()
    for outcome in outcomes:
        ends.update(outcome.statuses)
    return Row(
        what,
        "0 over, ≥ 99 % used, nothing held, counters = ledger",
        f"{max(one.over for one in outcomes)} over, {min(used):.2f} % used, {max(one.held for one in outcomes)} held, "
        f"counters {'=' if all(one.counters == one.ledger for one in outcomes) else '≠'} ledger",
        f"the budget: {outcomes[0].budget:,} tokens",
        min(used) / 100,
        all(one.is_right for one in outcomes),
        (
            f"{len(outcomes)} runs of {calls} calls from {PROCESSES} processes, {ASKED} tokens asked for, {ANSWER} "
            f"answered. Used in each run: {spread(used, '.2f')} %. Most that was ended or granted at any moment: "
            f"{spread((one.most for one in outcomes), ',')}. Answers: {dict(ends)}.",
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--calls", type=int, default=1000)
    arguments = parser.parse_args()
    where, calls = machine(), arguments.calls
    with Site(engine="echo", slots=64, gpu_workers=2) as site:
        probe, _ = run(site, 16, 1_000_000)
        budget = round(probe.ledger / 16 * calls * SERVED_SHARE)
        outcomes = [run(site, calls, budget) for _ in range(arguments.runs)]
        rows = [row("one token budget, undisturbed", [one for one, _ in outcomes], calls)]
        for harm, name in (("flush", "Valkey flushed in the middle"), ("kill", "a worker killed in the middle")):
            rows.append(row(f"one token budget, {name}", [run(site, calls, budget, harm)[0]], calls))
        user, _ = told(site, "made", BEGIN.format(budget=10**9))
        p50 = told(site, "ms", ADMIT.format(user=user))
    what, note = "admission: one window and the places, in one step", "500 admissions in a row beside the idle site."
    rows.append(Row(what, "p50 ≤ 2 ms", f"p50 {p50:.2f} ms", "target 2 ms", p50 / 2, p50 <= 2, (note,)))
    print(document(rows, where, " ".join(["python -m bench.limits", *sys.argv[1:]])))
    return 0 if all(one.passed for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
