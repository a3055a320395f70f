"""What a local run is made of, kept alive by supervisord (the `supervisor` library).

`Supervisor` is one supervisord with our programs, started by `manage.py up` and spoken to through its
socket. Priorities give the stop order: web, workers and beat, then the stores.
"""

import contextlib
import http.client
import re
import shlex
import signal
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Callable, Iterator
from configparser import RawConfigParser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.xmlrpc import SupervisorTransport

from chatsite.stores import POLL_S, Store, StoreFailed, log_tail, short_folder, with_parent

START_S = 15.0
TOLD_EVERY_S = 5.0
WAITS_FOR = re.compile(r" waiting for (.+) to die")
NEVER_GIVE_UP = 1_000_000  # retries, each a second later than the one before
WEB, WORKER, STORE = 900, 800, 100  # the highest stops first; workers and beat together


@dataclass(frozen=True)
class Program:
    """One kind of process, `count` times.

    With `listen` (host:port) they share one listening socket, as their fd 0.
    """

    name: str
    argv: list[str]
    priority: int
    folder: Path
    stop_wait_s: float
    count: int = 1
    listen: str | None = None
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    steady_s: int = 2  # seconds after which a start counts as one; sooner deaths are retried ever more slowly
    autostart: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def store_program(store: Store) -> Program:
    """The program that runs an embedded store; it starts with supervisord."""
    return Program(
        store.name,
        store.argv,
        STORE,
        store.folder,
        stop_wait_s=20,
        user=store.user,
        stop_signal=store.stop_signal,
        autostart=True,
    )


class Control:
    """Speaks to the supervisord that runs in `folder`, ours or another command's."""

    def __init__(self, folder: Path) -> None:
        self.logs = folder / "logs"
        self._socket = short_folder(folder / "run", None) / "supervisor.sock"

    def log(self, name: str) -> Path:
        """The log of the process `name`."""
        return self.logs / f"{name}.log"

    def restart(self, group: str, is_up: Callable[[int, Path], bool], timeout_s: float) -> Iterator[str]:
        """Restart the processes of a group one after the other, and yield the name of each that is up again.

        The next one is stopped when `is_up(pid, log)` holds for the one before. Raises StoreFailed when supervisord
        does not answer, or when one is not up within `timeout_s`.
        """
        for name in sorted(name for name, its in self._processes() if its == group):
            self._ask("stopProcess", f"{group}:{name}")
            self._ask("startProcess", f"{group}:{name}", False)
            deadline = time.monotonic() + timeout_s
            while not is_up(self._ask("getProcessInfo", f"{group}:{name}")["pid"], self.log(name)):
                if time.monotonic() > deadline:
                    raise StoreFailed(f"{name} does not serve. Its log ends:\n{log_tail(self.log(name))}")
                time.sleep(POLL_S)
            yield name

    def _processes(self) -> list[tuple[str, str]]:
        return [(process["name"], process["group"]) for process in self._ask("getAllProcessInfo")]

    def _ask(self, method: str, *arguments: object) -> Any:
        try:
            return self._call(method, *arguments)
        except (OSError, http.client.HTTPException, xmlrpc.client.Fault) as error:
            raise StoreFailed(f"supervisord did not do {method}: {error}") from error

    def _call(self, method: str, *arguments: object) -> Any:
        transport = SupervisorTransport(None, None, f"unix://{self._socket}")
        with xmlrpc.client.ServerProxy("http://localhost", transport=transport) as server:
            return getattr(server.supervisor, method)(*arguments)


class Supervisor(Control):
    """A supervisord for `programs`, our child. Its files: `folder`/supervisord.conf, `folder`/logs/*.log.

    `say`: told what a long stop still waits for.
    """

    def __init__(self, folder: Path, programs: list[Program], say: Callable[[str], None]) -> None:
        super().__init__(folder)
        self._say = say
        self.logs.mkdir(mode=0o700, exist_ok=True)
        self._config = folder / "supervisord.conf"
        self._process: subprocess.Popen[bytes] | None = None
        self._write_config(programs)

    @contextlib.contextmanager
    def running(self, *, keep_open: int) -> Iterator[None]:
        """supervisord lives in this block; every program has ended, in order, when it is left.

        It holds the file descriptor `keep_open` (the lock on DATA_DIR) as long as it lives. A
        KeyboardInterrupt while it stops ends everything at once.
        """
        argv = [sys.executable, "-m", "supervisor.supervisord", "--nodaemon", "-c", str(self._config)]
        self._process = subprocess.Popen(
            with_parent(argv, "KILL"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[keep_open],
            start_new_session=True,  # a Ctrl-C on the terminal is for us; we stop the rest in order
        )
        try:
            self._wait_for_socket()
            yield
        finally:
            self._stop()

    def start(self) -> None:
        """Start all but the stores, which run already; returns without waiting."""
        for group in ("web", "workers"):
            self._call("startProcessGroup", group, False)

    def states(self) -> dict[str, str]:
        """State by process name: RUNNING, STARTING, BACKOFF (died at once, will be retried), …

        Empty when supervisord is gone or stopping.
        """
        try:
            found = self._call("getAllProcessInfo")
        except (OSError, http.client.HTTPException, xmlrpc.client.Fault):
            return {}
        return {process["name"]: process["statename"] for process in found}

    def is_alive(self) -> bool:
        """Whether supervisord runs."""
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for supervisord to end; whether it has."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return not self.is_alive()

    def _stop(self) -> None:
        process = self._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        try:
            while not self.wait(TOLD_EVERY_S):
                waits_for = WAITS_FOR.findall((self.logs / "supervisord.log").read_text(errors="replace"))
                if waits_for:
                    self._say(f"Still stopping after {time.monotonic() - began:.0f} s: {waits_for[-1]}")
        except KeyboardInterrupt:
            process.kill()  # the kernel then ends the programs
            process.wait()
            raise

    def _wait_for_socket(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                self._call("getState")
                return
            except (OSError, http.client.HTTPException):
                if not self.is_alive() or time.monotonic() > deadline:
                    tail = log_tail(self.logs / "supervisord.log")
                    raise StoreFailed(f"supervisord did not start. Its log ends:\n{tail}") from None
            time.sleep(POLL_S)

    def _write_config(self, programs: list[Program]) -> None:
        workers = [program.name for program in programs if program.priority == WORKER]
        config = RawConfigParser()
        config.read_dict(
            {
                "supervisord": {
                    "logfile": _plain(self.logs / "supervisord.log"),
                    "pidfile": _plain(self._config.with_name("supervisord.pid")),
                    "childlogdir": _plain(self.logs),
                    "silent": "true",
                },
                "unix_http_server": {"file": _plain(self._socket), "chmod": "0700"},
                "rpcinterface:supervisor": {
                    "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
                },
                "group:workers": {"programs": ",".join(workers), "priority": str(WORKER)},
                **{_section(program): self._options(program) for program in programs},
            }
        )
        with self._config.open("w") as file:
            config.write(file)

    def _options(self, program: Program) -> dict[str, str]:
        name = "%(program_name)s%(process_num)d" if program.count > 1 else "%(program_name)s"
        options = {
            "command": _plain(shlex.join(program.argv)),
            "process_name": name,
            "numprocs": str(program.count),
            "priority": str(program.priority),
            "directory": _plain(program.folder),
            "autostart": str(program.autostart).lower(),
            "autorestart": "true",
            "startsecs": str(program.steady_s),
            "startretries": str(NEVER_GIVE_UP),
            "stopsignal": program.stop_signal.name.removeprefix("SIG"),
            "stopwaitsecs": str(int(program.stop_wait_s)),
            "killasgroup": "true",
            "redirect_stderr": "true",
            "stdout_logfile": f"{_plain(self.logs)}/{name}.log",
            "stdout_logfile_maxbytes": "10MB",
            "stdout_logfile_backups": "3",
        }
        if program.environment:
            pairs = program.environment.items()
            options["environment"] = ",".join(f'{name}="{_plain(value)}"' for name, value in pairs)
        if program.user:
            options["user"] = program.user
        if program.listen:
            options |= {"socket": f"tcp://{program.listen}", "socket_backlog": "4096"}
        return options


def _section(program: Program) -> str:
    # supervisor's fcgi-program is what hands children one shared listening socket, as their fd 0.
    return f"{'fcgi-program' if program.listen else 'program'}:{program.name}"


def _plain(value: object) -> str:
    """Text that supervisor must not expand."""
    return str(value).replace("%", "%%")
