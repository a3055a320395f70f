"""A Valkey and a PostgreSQL that a test may stop, kill, fill and start again."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from chatsite.postgres import postgres
from chatsite.stores import Store, identity, valkey, wait_until_answering

STOP_S = 20.0


class OwnStore:
    """One server, run as `manage.py up` runs it."""

    def __init__(self, store: Store, log: Path) -> None:
        self.store, self.log = store, log
        self.start()

    @property
    def url(self) -> str:
        return self.store.url

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                self.store.argv,
                cwd=self.store.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **identity(self.store.user),
            )
        wait_until_answering(self.store.name, self.url, self.log, lambda: self.child.poll() is None)

    def stop(self) -> None:
        """In order."""
        self.child.send_signal(self.store.stop_signal)
        self.child.wait(STOP_S)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait(STOP_S)


def own_valkey_in(folder: Path, *, durable: bool = False) -> OwnStore:
    """Unless `durable`, it keeps nothing."""
    return OwnStore(valkey(folder, durable=durable), folder / "valkey.log")


def own_postgres_in(folder: Path) -> OwnStore:
    """As root, `folder` must be one that others can enter."""
    return OwnStore(postgres(folder), folder / "postgres.log")


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[OwnStore]:
    running = own_valkey_in(tmp_path)
    yield running
    running.child.send_signal(signal.SIGCONT)
    running.kill()
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as usual:
        usual.delete("limits:epoch")  # the database has gone on to the epochs of the other store


@contextmanager
def open_folder() -> Iterator[Path]:
    """A new folder that PostgreSQL's user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="chatsite-faults-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class SmallDisk:
    """A file system of its own that can be filled. Raises OSError where mounting is refused."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        folder.mkdir(mode=0o711)
        argv = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=711", "tmpfs", str(folder)]
        try:
            subprocess.run(argv, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise OSError(f"mounting is refused: {getattr(error, 'stderr', '') or error}") from error

    def fill(self) -> None:
        """Not one byte is left."""
        with (self.folder / "filler").open("wb", buffering=0) as filler:
            block = b"\0" * (1 << 16)
            try:
                while True:
                    filler.write(block)
            except OSError:
                return

    def empty(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
