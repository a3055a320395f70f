"""Measure the figures and print them as a Markdown table: python -m bench [NAME …] [--write] [--quick].

Everything runs on this machine, on a site that is started for it. Exit status 1 when a figure misses its target.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import cancel, echo_rows, vllm_rows
from bench.figures import Row, document, machine
from bench.site import Site

RESULTS = Path(__file__).parent / "RESULTS.md"
QUICK = 0.25
ECHO: dict[str, Callable[[Site, float], Row]] = {
    "first-token": echo_rows.first_token,
    "token-cpu": echo_rows.token_cpu,
    "request-cpu": echo_rows.request_cpu,
    "crowd": echo_rows.crowd,
}
VLLM: dict[str, Callable[[vllm_rows.VllmSite, float], Row]] = {
    "idle": vllm_rows.idle,
    "throughput": vllm_rows.throughput,
    "cancel-1": cancel.one,
    "cancel-32": cancel.full,
    "cancel-prefill": cancel.prefill,
}


def main() -> int:
    """Run the wanted rows."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join([*ECHO, *VLLM])}")
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    parser.add_argument("--quick", action="store_true", help="a quarter of the time: to see that it works")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {*ECHO, *VLLM}
    if unknown:
        parser.error(f"no such figure: {', '.join(sorted(unknown))}")
    wanted, scale, where = arguments.names or [*ECHO, *VLLM], QUICK if arguments.quick else 1.0, machine()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the site is stopped in order
    rows = [*_echo(wanted, scale), *_vllm(wanted, scale)]
    text = document(rows, where, " ".join(["python -m bench", *sys.argv[1:]]))
    print(text)
    if arguments.write:
        RESULTS.write_text(f"# Figures\n\n{text}")
    return 0 if all(row.passed for row in rows) else 1


def _echo(wanted: list[str], scale: float) -> list[Row]:
    names = [name for name in ECHO if name in wanted]
    if not names:
        return []
    _say("starting a site with the echo engine")
    with Site(engine="echo", slots=echo_rows.SLOTS) as site:
        return [_run(name, lambda: ECHO[name](site, scale)) for name in names]  # noqa: B023


def _vllm(wanted: list[str], scale: float) -> list[Row]:
    names = [name for name in VLLM if name in wanted]
    if not names:
        return []
    _say("starting a site with vLLM, and the same engine beside it")
    with vllm_rows.VllmSite() as site:
        return [_run(name, lambda: VLLM[name](site, scale)) for name in names]  # noqa: B023


def _run(name: str, measure: Callable[[], Row]) -> Row:
    began = time.monotonic()
    _say(name)
    row = measure()
    _say(f"{row.to_markdown()}  ({time.monotonic() - began:.0f} s)")
    return row


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
