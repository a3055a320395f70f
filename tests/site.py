"""A real site for tests: web processes and echo workers as children, against the stores of the test run."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from django.db import connection

from chatsite import SERVES
from chatsite.stores import free_port, log_tail, with_parent
from inference.models import Worker

REPOSITORY = Path(__file__).resolve().parent.parent
START_S = 120.0  # of vLLM, while other tests need the processors
STOP_S = 25.0
POLL_S = 0.02
METRICS_TOKEN = "metrics-of-tests"


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 15.0) -> None:
    """Return as soon as `condition()` holds; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)


def database_url_of_tests() -> str:
    """DATABASE_URL of the database that pytest-django made."""
    given = urlsplit(os.environ["DATABASE_URL"])
    return given._replace(path="/" + str(connection.settings_dict["NAME"])).geturl()


def core_of(engine: int) -> dict[str, str]:
    """A core for each vLLM: threads that wait for each other are slow where two engines share all cores."""
    cores = sorted(os.sched_getaffinity(0))
    return {"VLLM_CPU_OMP_THREADS_BIND": str(cores[engine % len(cores)])}


@dataclass
class Process:
    """One child, in a process group of its own."""

    name: str
    argv: list[str]
    log: Path
    popen: "subprocess.Popen[bytes] | None" = None
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, stdin: int = subprocess.DEVNULL) -> None:
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                with_parent(self.argv, "TERM"),
                cwd=REPOSITORY,
                env=self.environment,
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.popen is not None
        return self.popen.pid

    @property
    def is_alive(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def ask_to_stop(self) -> None:
        if self.popen is not None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.terminate()

    def wait(self) -> None:
        """Until it has ended, and everything that it started."""
        if self.popen is None:
            return
        try:
            self.popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self.popen.wait()

    def stop(self) -> None:
        self.ask_to_stop()
        self.wait()


@dataclass
class Web(Process):
    """A web process, as a supervisor runs it, with a port of its own or one that it shares through `listener`."""

    port: int = 0
    listener: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def start(self, stdin: int = subprocess.DEVNULL) -> None:
        if self.listener is not None:
            super().start(self.listener.fileno())
            return
        with socket.create_server(("127.0.0.1", self.port), backlog=4096) as own:
            super().start(own.fileno())

    def answers(self) -> bool:
        return SERVES.format(pid=self.pid) in self.log.read_text()


class Site:
    """Web processes and GPU workers, with the echo engine by default; the model must be registered already.

    The processes share `database_url` and `redis_url`; `environment` overrides their settings. With `shares_port` the
    web processes accept from one socket, as those of `manage.py up` do. `side`: the side worker and beat, too.
    `worker_app`: the workers' Celery application.
    """

    def __init__(
        self,
        folder: Path,
        *,
        database_url: str,
        redis_url: str,
        webs: int = 2,
        workers: int = 1,
        slots: int = 8,
        model: str = "echo",
        side: bool = False,
        worker_app: str = "chatsite",
        environment: dict[str, str] | None = None,
        shares_port: bool = False,
    ) -> None:
        self.folder = folder
        self.slots = slots
        self.worker_app = worker_app
        self.environment = {
            **os.environ,
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "DATA_DIR": str(folder),
            "ENGINE": "echo" if model == "echo" else "vllm",
            "MODEL": model,
            "ENGINE_SLOTS": str(slots),
            "LOG_LEVEL": "INFO",
            "DRAIN": "1",
            "METRICS_TOKEN": METRICS_TOKEN,
            "PROMETHEUS_MULTIPROC_DIR": str(folder / "metrics"),
            "WEB_DRAIN": "1",
            **(environment or {}),
        }
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096) if shares_port else None
        self.webs = [self._web(i) for i in range(webs)]
        self.workers = [self._worker(f"worker{i}", self.environment | core_of(i)) for i in range(workers)]
        self.real_workers: list[Process] = []
        self.side = [self._side(), self._beat()] if side else []

    def _web(self, number: int) -> Web:
        name, log = f"web{number}", self.folder / f"web{number}.log"
        port = self.listener.getsockname()[1] if self.listener else free_port()
        argv = [sys.executable, "-m", "chatsite.serve"]
        return Web(name, argv, log, environment=self.environment, port=port, listener=self.listener)

    def add_real_worker(self, *, model: str, slots: int, kv_cache_bytes: int) -> None:
        """One more worker, with vLLM, before the site is entered; the model must be registered already."""
        own = {"ENGINE": "vllm", "MODEL": model, "ENGINE_SLOTS": str(slots), "KV_CACHE_BYTES": str(kv_cache_bytes)}
        number = len(self.real_workers)
        self.real_workers.append(self._worker(f"real{number}", self.environment | own | core_of(number)))

    def _worker(self, called: str, environment: dict[str, str]) -> Process:
        name = f"{called}-{os.path.basename(self.folder)}"
        argv = [sys.executable, "-m", "celery", "-A", self.worker_app, "worker", "--pool", "threads"]
        argv += [
            "-c",
            environment["ENGINE_SLOTS"],
            "-Q",
            f"gpu.{environment['MODEL']}",
            "-n",
            f"{name}@%h",
            "--loglevel",
            "INFO",
            "--without-mingle",
            "--without-heartbeat",
            "--without-gossip",
        ]
        return Process(name, argv, self.folder / f"{called}.log", environment=environment)

    def _side(self) -> Process:
        argv = [sys.executable, "-m", "celery", "-A", "chatsite", "worker", "--pool", "threads", "-c", "2"]
        argv += ["-Q", "default", "-n", f"side-{os.path.basename(self.folder)}@%h", "--without-mingle"]
        return Process("side", [*argv, "--without-gossip"], self.folder / "side.log", environment=self.environment)

    def _beat(self) -> Process:
        argv = [sys.executable, "-m", "celery", "-A", "chatsite", "beat", "-s", str(self.folder / "beat")]
        return Process("beat", argv, self.folder / "beat.log", environment=self.environment)

    def __enter__(self) -> Self:
        try:
            for process in self.processes:
                process.start()
            for process in self.processes:
                self._wait(process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.ask_to_stop()  # they take their last second together
        for process in self.processes:
            process.wait()
        if self.listener:
            self.listener.close()

    @property
    def processes(self) -> list[Process]:
        return [*self.webs, *self.workers, *self.real_workers, *self.side]

    def kill(self, process: Process, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; a deadly one is waited for."""
        os.kill(process.pid, number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            assert process.popen is not None
            process.popen.wait(STOP_S)

    def restart(self, *ended: Process) -> None:
        """Start processes that have ended, and wait until they serve."""
        for process in ended:
            assert not process.is_alive
            process.start()
        for process in ended:
            self._wait(process)

    def row(self, worker: Process) -> Worker:
        """The worker's row."""
        return Worker.objects.filter(pid=worker.pid).latest("started_at")

    def _wait(self, process: Process) -> None:
        def serves() -> bool:
            if not process.is_alive:
                raise AssertionError(f"{process.name} ended. Its log ends:\n{log_tail(process.log, 40)}")
            if isinstance(process, Web):
                return process.answers()
            if process in self.side:
                return True  # what they do is seen in time
            return Worker.objects.filter(pid=process.pid, state=Worker.State.READY).exists()

        try:
            wait_until(serves, f"{process.name} serves", START_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\nIts log ends:\n{log_tail(process.log, 40)}") from None


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process is frozen (SIGSTOP) in the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def raw_request(port: int, request: bytes) -> socket.socket:
    """A connection on which `request` was sent, for tests that hang up in their own way."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(request)
    return connection
