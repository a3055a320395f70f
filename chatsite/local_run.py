"""Small parts of `manage.py up`: the lock on DATA_DIR, the port, progress lines, the site's programs."""

import contextlib
import fcntl
import http.client
import importlib.metadata
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from django.conf import settings
from django.core.management.base import CommandError

from chatsite.pids import is_alive
from chatsite.stores import POLL_S, with_parent
from chatsite.supervision import WEB, WORKER, Program

LEFTOVER_S = 90.0  # longer than an orderly stop takes


def say(line: str) -> None:
    """One line of progress, at once."""
    print(line, flush=True)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Say that a step starts, and how long it took."""
    say(f"{name} …")
    began = time.monotonic()
    yield
    say(f"{name}: {time.monotonic() - began:.1f} s")


def lock(folder: Path) -> TextIO:
    """Hold DATA_DIR for this run; whoever has the file's descriptor open keeps it held.

    A killed run that is still stopping is waited for. Raises CommandError when a living one has it.
    """
    file = (folder / "lock").open("a+")
    deadline = time.monotonic() + LEFTOVER_S
    said = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            if (holder and is_alive(int(holder))) or time.monotonic() > deadline:
                raise CommandError(f"{folder} is in use by process {holder}. Choose another with DATA_DIR.") from None
        if not said:
            say(f"The previous run in {folder} is still stopping; waiting for it.")
            said = True
        time.sleep(POLL_S)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def check_port(host: str, port: int) -> None:
    """Raise CommandError unless the site can listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CommandError(
                f"Cannot listen on {host}:{port} ({error.strerror}). Choose another with PORT or HOST."
            ) from None


def status_of(path: str) -> int | None:
    """The HTTP status that our own site answers `path` with; None while nobody answers."""
    host = "127.0.0.1" if settings.HOST == "0.0.0.0" else settings.HOST
    connection = http.client.HTTPConnection(host, settings.PORT, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


# -- the programs ---------------------------------------------------------------------------------


def programs() -> list[Program]:
    """The site's own programs, as the settings want them."""
    workers = [*(_gpu(number) for number in range(settings.GPU_WORKERS)), _side(), _beat()]
    if settings.PROBE_PORT:
        workers = [
            replace(program, environment={"PROBE_PORT": str(settings.PROBE_PORT + number)})
            for number, program in enumerate(workers)
        ]
    return [_web(), *workers]


def _python(*arguments: str) -> list[str]:
    # KILL: without a supervisor the stores leave too, and TERM would wait for streams and drains that cannot
    # end well (measured: 55 s with one open generation). Rows and leases make a killed worker harmless.
    return with_parent([sys.executable, "-m", *arguments], "KILL")


def _web() -> Program:
    return Program(
        "web",
        _python("chatsite.serve"),
        WEB,
        settings.BASE_DIR,
        stop_wait_s=settings.WEB_DRAIN_S + 15,  # see chatsite.serve
        count=settings.WEB_PROCESSES,
        listen=f"{settings.HOST}:{settings.PORT}",
    )


def _celery(*arguments: str) -> list[str]:
    return _python("celery", "--quiet", "-A", "chatsite", *arguments, "-l", settings.LOG_LEVEL)


def _worker(queue: str, name: str, threads: int) -> list[str]:
    return _celery(
        "worker", "--pool", "threads", "-c", str(threads), "-Q", queue, "-n", name,
        "--without-gossip", "--without-mingle", "--without-heartbeat",
    )  # fmt: skip


def _gpu(number: int) -> Program:
    name = f"gpu{number}"
    argv = _worker(f"gpu.{settings.MODEL}", f"{name}@%h", slots())
    return Program(name, argv, WORKER, settings.BASE_DIR, stop_wait_s=settings.DRAIN_S + 20, steady_s=5)


def slots() -> int:
    """Generations that one engine runs at once."""
    if settings.ENGINE_SLOTS:
        return int(settings.ENGINE_SLOTS)
    return 256 if settings.ENGINE == "vllm" and _has_cuda_build() else 32


def _has_cuda_build() -> bool:
    """Whether vLLM's CUDA build is installed: `make` installs it where there is an NVIDIA GPU."""
    try:
        importlib.metadata.distribution("vllm")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _side() -> Program:
    return Program("side", _worker("default", "side@%h", 4), WORKER, settings.BASE_DIR, stop_wait_s=30)


def _beat() -> Program:
    argv = _celery("beat", "-s", str(settings.DATA_DIR / "beat-schedule"))
    return Program("beat", argv, WORKER, settings.BASE_DIR, stop_wait_s=10)
