"""What /metrics answers: everything that the processes of this host have counted, in Prometheus' text format."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from django.conf import settings
from django.utils.crypto import constant_time_compare
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from chatsite.pids import is_alive

__all__ = ["CONTENT_TYPE", "exposition", "has_token"]

LIVE_FILE = re.compile(r"gauge_live\w+?_(\d+)\.db")


class _Now(Collector):
    """Metrics that are made when they are asked for."""

    def __init__(self, make: Callable[[], Iterable[Metric]]) -> None:
        self._make = make

    def collect(self) -> Iterable[Metric]:
        return self._make()


def has_token(authorization: str) -> bool:
    """Whether an Authorization header names METRICS_TOKEN; never where there is none."""
    token = settings.METRICS_TOKEN
    return bool(token) and constant_time_compare(authorization, f"Bearer {token}")


def exposition(site: Callable[[], Iterable[Metric]] | None = None) -> bytes:
    """All metrics; `site` makes those that no process keeps. With a shared folder: of all processes of the host."""
    registry = CollectorRegistry()
    if settings.METRICS_DIR:
        _forget_dead(Path(settings.METRICS_DIR))
        MultiProcessCollector(registry, settings.METRICS_DIR)  # type: ignore[no-untyped-call]
    else:
        registry.register(REGISTRY)
    if site is not None:
        registry.register(_Now(site))
    return generate_latest(registry)


def _forget_dead(folder: Path) -> None:
    """What dead processes counted still counts, what they had open does not."""
    for file in folder.glob("gauge_live*.db"):
        found = LIVE_FILE.fullmatch(file.name)
        if found and not is_alive(int(found[1])):
            mark_process_dead(int(found[1]), str(folder))  # type: ignore[no-untyped-call]
