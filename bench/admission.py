"""What limits add to a request: python -m bench.admission [--pairs N].

Two people send the same short call over HTTP in turn, one without any limit, the other with five windows of their own,
their organization and their key. Then admission alone, timed in a process beside the site.
"""

import argparse
import asyncio
import json
import sys
from typing import Any

from bench.figures import Row, document, machine, median, percentile
from bench.load import Answer, Client, order
from bench.site import Site

BEGIN = """
import json
from uuid import uuid4
from billing.models import KeyWindow, OrganizationWindow, Plan, PlanWindow
from billing.operations import create_user, issue_key
made = []
for is_limited in (False, True):
    plan = Plan.objects.create(slug=uuid4().hex[:20], name="bench", band=9, max_concurrent=1000)
    user = create_user(email=f"{plan.slug}@example.org", password="tall-trees-7")
    user.plan, user.plan_is_own = plan, True
    user.save()
    key, secret = issue_key(user=user, name="bench")
    if is_limited:
        for kind, seconds in (("requests", 10_800), ("tokens", 86_400), ("tokens", 2_592_000)):
            PlanWindow.objects.create(plan=plan, kind=kind, amount=10**9, seconds=seconds)
        OrganizationWindow.objects.create(organization=user.organization, kind="tokens", amount=10**9, seconds=86_400)
        KeyWindow.objects.create(api_key=key, kind="requests", amount=10**9, seconds=60)
    made.append(secret)
print("made", json.dumps(made))
"""
ALONE = """
import json, time
from uuid import uuid4
from billing import admission
from billing.models import PLAN_ROWS, ApiKey, User
from billing.operations import Principal
times = {{}}
keys = [ApiKey.objects.get(digest=ApiKey.digest_of(secret)) for secret in {secrets}]
users = [User.objects.select_related(*PLAN_ROWS).get(pk=key.user_id) for key in keys]
for turn in range(600):
    principal, name = Principal(users[turn % 2], keys[turn % 2]), uuid4()
    began = time.perf_counter()
    admission.admit(generation_id=name, principal=principal, prompt_tokens=10, room=100, asked=20)
    times.setdefault(turn % 2, []).append(time.perf_counter() - began)
    admission.release(principal=principal, generation_id=name)
print("ms", json.dumps([1000 * sorted(each)[len(each) // 2] for each in times.values()]))
"""


def told(site: Site, word: str, script: str) -> Any:
    """What a script beside the site prints after `word`, from JSON."""
    return json.loads(site.manage("shell", "-v", "0", "-c", script).split(f"{word} ")[-1].splitlines()[0])


async def in_turn(url: str, secrets: list[str], pairs: int) -> tuple[list[float], list[float]]:
    """Seconds to the first text, without and with limits: one call of each after the other, the first one changing."""
    clients = [Client(url, secret, "echo") for secret in secrets]
    connections = [await client.connect() for client in clients]
    requests = [client.chat(order(1, itl_ms=1, ttft_ms=1)) for client in clients]
    found: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs + 20):
        for which in (0, 1) if pair % 2 else (1, 0):
            answer = await connections[which].request(requests[which], Answer(1))
            if answer.fault():
                raise SystemExit(f"a call failed: {answer.fault()}")
            if pair >= 20:  # the first ones warm everything up
                found[which].append(answer.ttft)
    for connection in connections:
        connection.close()
    return found


def row(site: Site, pairs: int) -> Row:
    secrets = told(site, "made", BEGIN)
    without, limited = asyncio.run(in_turn(site.url, secrets, pairs))
    added = 1000 * median(b - a for a, b in zip(without, limited, strict=True))
    plain, whole = told(site, "ms", ALONE.format(secrets=secrets))
    base = 1000 * median(without)
    return Row(
        "what five windows add to a request, over HTTP",
        "p50 ≤ 2 ms",
        f"p50 {added:.2f} ms",
        f"the same call without limits: first text after p50 {base:.1f} ms",
        (base + added) / base,
        added <= 2,
        (
            f"Median of the differences of {pairs} pairs of calls in turn, on kept-alive connections. First text: "
            f"without p50/p99 {base:.1f}/{1000 * percentile(without, 99):.1f} ms, with "
            f"{1000 * median(limited):.1f}/{1000 * percentile(limited, 99):.1f} ms.",
            f"Admission alone, which every call goes through, in one process: p50 {plain:.2f} ms without windows, "
            f"{whole:.2f} ms with them.",
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.admission", description=__doc__)
    parser.add_argument("--pairs", type=int, default=300)
    arguments = parser.parse_args()
    where = machine()
    with Site(engine="echo", slots=8) as site:
        found = row(site, arguments.pairs)
    print(document([found], where, " ".join(["python -m bench.admission", *sys.argv[1:]])))
    return 0 if found.passed else 1


if __name__ == "__main__":
    sys.exit(main())
