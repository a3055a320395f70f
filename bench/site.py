"""The site under test: `manage.py up` with its own DATA_DIR, stores and port, and what its processes use."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psutil

from chatsite.stores import free_port, log_tail, with_parent

REPOSITORY = Path(__file__).resolve().parent.parent
START_S = 180.0
# Nothing of another site may leak in; what says which model and engine to measure may.
DROPPED = (
    "DATABASE_URL", "REDIS_URL", "BROKER_URL", "HOST", "ALLOWED_HOSTS", "HTTPS", "SECRET_KEY", "DEBUG",
    "DATABASE_POOL", "REDIS_CONNECTIONS", "QUEUE_DEPTH", "LOG_LEVEL", "DJANGO_SETTINGS_MODULE", "PROBE_PORT",
    "PROMETHEUS_MULTIPROC_DIR",
)  # fmt: skip
# On the highest band, so that no slot is kept from it for others.
MAKE_KEY = """
from billing.models import Plan
from billing.operations import create_user, issue_key
Plan.objects.update(max_concurrent=2000)
user = create_user(email="bench@example.org", password="tall-trees-7")
user.plan = Plan.objects.order_by("band").last()
user.save()
print("key", issue_key(user=user, name="bench")[1])
"""


class Site:
    """One local run: one web process, side worker, beat, embedded stores and, unless `gpu_workers` is 0, a worker.

    The stores are as durable as in any local run. `environment` overrides settings. `is_watched`: bench.up_watched.
    """

    def __init__(
        self, *, engine: str, slots: int, gpu_workers: int = 1, is_watched: bool = False, **environment: str
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="chatsite-bench-"))
        self.folder.chmod(0o711)  # as root, PostgreSQL's own user must get through
        self.port = int(os.environ.get("PORT") or free_port())
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {name: value for name, value in os.environ.items() if name not in DROPPED} | {
            "DATA_DIR": str(self.folder),
            "MODEL_DIR": os.environ.get("MODEL_DIR") or str(REPOSITORY / "data" / "models"),  # converted once
            "PORT": str(self.port),
            "ENGINE": engine,
            "ENGINE_SLOTS": str(slots),
            "WEB_PROCESSES": "1",
            "GPU_WORKERS": str(gpu_workers),
            "DRAIN": "1",
            "WEB_DRAIN": "1",
            "ABANDON_AFTER": "0",  # some rows submit what nobody follows
            "LOG_LEVEL": "WARNING",
            **environment,
        }
        self._up = ["-m", "bench.up_watched"] if is_watched else [str(REPOSITORY / "manage.py"), "up"]
        self.key = ""
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            up = self.start("up", [sys.executable, *self._up])
            self.wait(lambda: self.status("/healthz") == 200, "the web process answers", up)
            self.key = self.manage("shell", "-v", "0", "-c", MAKE_KEY).split("key ")[-1].strip()
            if self.environment["GPU_WORKERS"] != "0":
                self.wait(lambda: self.status("/readyz") == 200, "the worker serves", up)
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        if kind is not None:
            print(self._log_ends(), file=sys.stderr)
        for child in reversed(self._children):
            child.terminate()
            child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name: str, argv: list[str]) -> "subprocess.Popen[bytes]":
        """A child with the site's environment, which ends with the site; its output is in folder/name.out."""
        with (self.folder / f"{name}.out").open("wb") as output:
            child = subprocess.Popen(
                with_parent(argv, "TERM"),
                cwd=REPOSITORY,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append(child)
        return child

    def wait(self, condition: Callable[[], bool], what: str, child: "subprocess.Popen[bytes]") -> None:
        """Return once `condition()` holds; SystemExit when `child` has ended, or after START_S."""
        deadline = time.monotonic() + START_S
        while not condition():
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"not within {START_S:g} s: {what}")
            time.sleep(0.05)

    @property
    def is_up(self) -> bool:
        """Whether `up` runs."""
        return self._children[0].poll() is None

    def _log_ends(self) -> str:
        logs = [*self.folder.glob("*.out"), *self.folder.glob("logs/*.log")]
        return "\n".join(f"{path.name} ends:\n{log_tail(path)}" for path in logs)

    def manage(self, *arguments: str) -> str:
        """The output of a manage.py command beside the site."""
        argv = [sys.executable, str(REPOSITORY / "manage.py"), *arguments]
        return subprocess.run(argv, check=True, env=self.environment, cwd="/", stdout=subprocess.PIPE, text=True).stdout

    def status(self, path: str) -> int | None:
        """The HTTP status of a page; None when nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    # -- what its processes use -----------------------------------------------------------------

    def cpu(self) -> dict[str, float]:
        """CPU seconds (user and system) that each kind of process has used so far, reaped children included.

        Takes some 20 ms: call it in a thread while streams are timed.
        """
        used: dict[str, float] = {}
        for process, kind in self._processes():
            used[kind] = used.get(kind, 0.0) + _cpu_of(process)
        return used

    def web_rss_mb(self) -> float:
        """Resident memory of the web process, in MB (10⁶ bytes)."""
        return sum(process.memory_info().rss for process, kind in self._processes() if kind == "web") / 1e6

    def processes_of(self, kind: str) -> list[psutil.Process]:
        """Supervisord's own children of this kind."""
        found = self._processes()
        above = {process.pid for process, of in found if of == "supervisor"}
        return [process for process, of in found if of == kind and process.ppid() in above]

    def _processes(self) -> list[tuple[psutil.Process, str]]:
        """All processes of `up`, each with its kind: that of supervisord's child that it is or belongs to."""
        up = psutil.Process(self._children[0].pid)
        found = [(up, "supervisor")]
        kinds = {up.pid: "supervisor"}
        for process in up.children(recursive=True):  # parents come before their children
            with contextlib.suppress(psutil.NoSuchProcess):
                above = kinds.get(process.ppid(), "other")
                kinds[process.pid] = _kind(process) if above == "supervisor" else above
                found.append((process, kinds[process.pid]))
        return found


def _kind(program: psutil.Process) -> str:
    line = " ".join(program.cmdline())
    words = {
        "supervisord": "supervisor",
        "uvicorn": "web",
        "chatsite.serve": "web",
        "-Q gpu.": "worker",
        "-Q default": "side",
        " beat": "beat",
    }
    words |= {"valkey": "valkey", "postgres": "postgres"}
    return next((kind for word, kind in words.items() if word in line), "other")


def _cpu_of(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # its parent counts it now
        return 0.0
    # Reaped children too: PostgreSQL's backends come and go during a run.
    return times.user + times.system + times.children_user + times.children_system


def used_between(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """CPU seconds by kind of process between two readings of Site.cpu()."""
    return {name: after[name] - before.get(name, 0.0) for name in after}


def shares(used: dict[str, float], per: float, unit: float = 1e6) -> str:
    """CPU by kind of process, per piece of work: "web 41, worker 22, …"; `unit` pieces of a second."""
    ordered = sorted(used.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {unit * seconds / per:.1f}" for name, seconds in ordered if seconds > 0)
