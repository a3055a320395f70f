"""Metrics of refusals; those of the rest are in inference.metrics, which also says how they work."""

import os
from pathlib import Path


def _prepare(folder: Path) -> None:
    """Make the folder; forget what an earlier process with our number (in a container, say) had open."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob(f"gauge_live*_{os.getpid()}.db"):
        file.unlink()


# Read here because prometheus_client reads it itself, at its import; settings may not be complete by then.
if _folder := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
    _prepare(Path(_folder))

from prometheus_client import Counter, Gauge, Histogram  # noqa: E402 - after the folder is made

__all__ = ["Counter", "Gauge", "Histogram", "refusals"]

refusals = Counter("chatsite_refusals_total", "Requests that were refused, by the refusal's code.", ["code"])
