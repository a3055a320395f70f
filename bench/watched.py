"""A GPU worker that can be asked what its engine does: `celery -A bench.watched worker …`, as `up` starts it else.

BENCH_SOCKET names the socket. The engine's figures are its own record of each step (running requests, KV blocks);
they are looked at once a millisecond, and only between begin() and end().
"""

import os
import threading
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from celery import bootsteps

from bench.remote import serve_in_thread
from chatsite.celery import app
from inference.worker import hosts

LOOK_S = 0.001


class Watch:
    """Records (time.monotonic(), running, kv_usage) whenever the engine has new figures."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self._records: list[tuple[float, int, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread()

    def begin(self) -> None:
        self._stop.clear()
        self._records = []
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
        self._thread.start()

    def end(self) -> list[tuple[float, int, float]]:
        """All records since begin()."""
        self._stop.set()
        self._thread.join()
        return self._records

    def cancel(self, generation: str) -> float:
        """EngineHost.cancel; when it was called."""
        called = time.monotonic()
        self._host.on_loop(self._host.cancel, UUID(generation))
        return called

    def kv_tokens(self) -> int:
        """What the KV cache holds."""
        return int(self._host.engine.kv_tokens)

    def kv_usage(self) -> float:
        """The share of it that is in use now."""
        return float(self._host.engine.load().kv_usage)

    def _look(self) -> None:
        last = None
        while not self._stop.is_set():
            load = self._host.engine.load()
            if load is not last:
                last = load
                self._records.append((time.monotonic(), load.running, load.kv_usage))
            time.sleep(LOOK_S)


class WatchStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Answers the bench once the host serves."""

    requires = {"inference.worker:HostStep"}  # noqa: RUF012

    def start(self, worker: Any) -> None:
        watch = Watch(hosts()[0])
        functions = {name: getattr(watch, name) for name in ("begin", "end", "cancel", "kv_tokens", "kv_usage")}
        serve_in_thread(Path(os.environ["BENCH_SOCKET"]), functions)

    def stop(self, worker: Any) -> None:
        pass


app.steps["worker"].add(WatchStep)
