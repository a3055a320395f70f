"""The embedded stores: who can use them, where they put their data, and that nothing outlives its parent."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from channels_redis.pubsub import RedisPubSubChannelLayer  # type: ignore[import-untyped]
from kombu.connection import Connection

from chatsite.postgres import SYSTEM_FOLDER, postgres
from chatsite.stores import answers, running_stores, short_folder
from tests.chatsite.site import REPOSITORY, wait_for

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root must run PostgreSQL as someone else")


@pytest.fixture
def folder() -> Iterator[Path]:
    found = Path(tempfile.mkdtemp(prefix="chatsite-stores-"))
    found.chmod(0o711)
    yield found
    shutil.rmtree(found, ignore_errors=True)


async def test_every_client_of_ours_reaches_them_and_they_stop(folder: Path) -> None:
    with running_stores(folder) as (database_url, redis_url):
        with psycopg.connect(database_url) as connection:
            row = connection.execute("SELECT current_setting('listen_addresses')").fetchone()
        assert row == ("",)
        with redis.Redis.from_url(redis_url) as client:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        with Connection(redis_url) as broker:  # type: ignore[no-untyped-call]
            broker.ensure_connection(max_retries=1)
        layer = RedisPubSubChannelLayer(hosts=[redis_url])
        channel = await layer.new_channel()
        await layer.send(channel, {"type": "hello"})
        assert (await layer.receive(channel))["type"] == "hello"
        await layer.flush()
    assert not answers(database_url) and not answers(redis_url)


def test_only_those_who_may_get_in(folder: Path) -> None:
    with running_stores(folder) as (database_url, redis_url):
        sockets = Path(str(psycopg.conninfo.conninfo_to_dict(database_url)["host"]))
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        address = redis_url.rpartition("@")[2]
        with redis.Redis.from_url(f"redis://{address}") as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
def test_they_leave_with_a_killed_parent_and_start_again_with_their_data(folder: Path) -> None:
    script = (
        "import sys, pathlib; from chatsite.stores import running_stores\n"
        "with running_stores(pathlib.Path(sys.argv[1])) as urls: print('up', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", script, str(folder)]
    parent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY)
    assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
    children = psutil.Process(parent.pid).children(recursive=True)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert len(children) > 2
    _, left = psutil.wait_procs(children, timeout=20)
    assert not left
    with running_stores(folder) as (database_url, redis_url):
        assert answers(database_url) and answers(redis_url)


def test_a_valkey_left_over_by_a_killed_run_is_stopped_first(folder: Path) -> None:
    with running_stores(folder) as (_, old_url):
        from chatsite.stores import valkey

        valkey(folder)
        wait_for(lambda: not answers(old_url), "the old server's end")


@AS_ROOT
def test_data_goes_elsewhere_when_the_system_user_cannot_enter(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.chmod(0o700)
    try:
        store = postgres(folder)
        assert store.folder.parent == SYSTEM_FOLDER
        assert str(store.folder) in capsys.readouterr().out
        assert postgres(folder).folder == store.folder
        assert capsys.readouterr().out == ""  # said once
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700  # nobody opened it
    finally:
        shutil.rmtree(store.folder)


def test_sockets_get_a_short_folder_when_the_name_is_too_long(folder: Path) -> None:
    long = folder / ("x" * 100)
    long.mkdir()
    short = short_folder(long / "run", None)
    try:
        assert len(str(short)) < 60 and stat.S_IMODE(short.stat().st_mode) == 0o700
        assert short_folder(long / "run", None) == short
    finally:
        shutil.rmtree(short)
