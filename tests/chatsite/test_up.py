"""`manage.py up`: what starts, what is restarted, and that nothing outlives it."""

import json
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import psutil
import pytest

from chatsite.stores import free_port
from tests.chatsite.site import REPOSITORY, Site, wait_for

pytestmark = pytest.mark.faults
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")


@pytest.fixture
def sites() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def new_site(sites: ExitStack, **env: str) -> Site:
    site = Site(**env)
    sites.callback(site.remove)
    return site


def test_starts_is_found_by_commands_and_starts_again_quickly(sites: ExitStack) -> None:
    site = new_site(sites, ADMIN_EMAIL="root@example.org", WEB_DRAIN="30")
    site.start()
    site.wait_for_address()
    assert site.status("/healthz") == 200
    wait_for(lambda: site.status("/readyz") == 200, "a ready worker")
    password = re.search(r"Administrator: root@example\.org +password \(shown only now\): (\S+)", site.output())
    assert password, site.output()
    for name in ("run.json", "secret_key", "valkey/valkey.conf"):
        assert stat.S_IMODE((site.folder / name).stat().st_mode) == 0o600, name
    assert (site.run_file() or {})["pid"] == site.up.pid

    made = site.manage("create_user", "ada@example.org", "--password", "a long enough one")
    assert made.returncode == 0, made.stderr
    key = site.manage("create_key", "ada@example.org")
    assert key.returncode == 0 and len(key.stdout.split()) == 1, key.stderr

    site.up.send_signal(signal.SIGINT)
    site.wait_until_gone()
    assert not (site.folder / "run.json").exists()
    refused = site.manage("create_key", "ada@example.org")
    assert refused.returncode == 1 and "No site runs in" in refused.stderr and "Traceback" not in refused.stderr

    began = time.monotonic()
    site.start()
    site.wait_for_address()
    assert time.monotonic() - began < 30
    assert "Administrator" not in site.output()
    wait_for(lambda: site.status("/readyz") == 200, "a ready worker")
    with site.open_stream():
        site.up.send_signal(signal.SIGTERM)
        wait_for(lambda: re.search(r"Still stopping after \d+ s: .*web", site.output()), "what it waits for")
    site.wait_until_gone()


@ON_LINUX
def test_two_sites_live_side_by_side_and_leave_nothing(sites: ExitStack) -> None:
    probes = _three_ports()
    one, two = new_site(sites, WEB_PROCESSES="2", METRICS_TOKEN="t", PROBE_PORT=str(probes)), new_site(sites)
    one.start()
    two.start()
    one.wait_for_address()
    two.wait_for_address()
    assert (one.run_file() or {})["redis_urls"] != (two.run_file() or {})["redis_urls"]

    _tells_of_all_its_processes(one, probes)
    for word in ("chatsite.serve", "gpu0@"):
        _is_restarted(one, word)
    wait_for(lambda: one.status("/readyz") == 200, "a ready worker again")

    with one.open_stream():
        one.processes()
        one.up.kill()
        one.wait_until_gone(15)
    assert two.status("/healthz") == 200
    two.supervisord().kill()
    two.wait_until_gone()
    assert two.up.returncode == 1 and "supervisord ended" in two.output()


def _three_ports() -> int:
    """The first of three free ports in a row."""
    while True:
        first = free_port()
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + 3):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def _status(url: str) -> int | None:
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return None


def _tells_of_all_its_processes(site: Site, probes: int) -> None:
    """Web processes that share a socket answer /metrics for every process; each worker, and beat, has its probes."""
    for number, (name, loops) in enumerate({"gpu": 3, "side": 1, "beat": 1}.items()):
        url = f"http://127.0.0.1:{probes + number}"
        wait_for(lambda url=url: _status(f"{url}/readyz") == 200, f"{name} is ready", 60)
        assert len(httpx.get(f"{url}/healthz").json()) == loops

    def told() -> bool:
        headers = {"Authorization": "Bearer t"}
        text = httpx.get(f"http://127.0.0.1:{site.port}/metrics", headers=headers).text
        return "chatsite_checkpoint_seconds_count{" in text and 'chatsite_jobs_total{job="inference.' in text

    for _ in range(10):  # whichever process answers
        wait_for(told, "a GPU worker's and the side worker's figures")


@ON_LINUX
def test_web_processes_are_restarted_one_after_the_other(sites: ExitStack) -> None:
    site = new_site(sites, WEB_PROCESSES="2", WEB_DRAIN="20")
    site.start()
    site.wait_for_address()
    wait_for(lambda: site.status("/readyz") == 200, "a ready worker")
    before = {process.pid for process in site.processes() if "chatsite.serve" in " ".join(process.cmdline())}
    stream, seen = site.open_stream(n=120), 0
    restarting = subprocess.Popen([sys.executable, "manage.py", "restart_web"], env=site.env, cwd=REPOSITORY)
    while line := stream.readline():
        seen += b'"content":"t0' in line
        assert b"error" not in line
        if seen % 10 == 0:
            assert site.status("/healthz") == 200
    assert seen > 20 and restarting.wait(90) == 0
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in before), "the old ones have left")
    assert site.status("/readyz") == 200
    site.up.send_signal(signal.SIGTERM)
    site.wait_until_gone()
    gone = site.manage("restart_web")
    assert gone.returncode == 1 and "No site runs in" in gone.stderr


def _is_restarted(site: Site, word: str) -> None:
    killed = wait_for(lambda: site.process(word), word)
    killed.kill()
    wait_for(lambda: (found := site.process(word)) and found.pid != killed.pid, f"{word} again")
    wait_for(lambda: not psutil.pid_exists(killed.pid), f"the old {word} reaped")
    assert site.status("/healthz") == 200


def test_a_port_in_use_is_one_clear_line(sites: ExitStack) -> None:
    site = new_site(sites)
    with socket.create_server(("127.0.0.1", site.port)):
        site.start()
        site.wait_until_gone()
    assert site.up.returncode == 1
    assert f"Cannot listen on 127.0.0.1:{site.port}" in site.output() and "Traceback" not in site.output()


def test_a_folder_in_use_is_one_clear_line_and_a_stale_run_file_none(sites: ExitStack) -> None:
    site = new_site(sites)
    stale = {"pid": 2**22, "database_url": "postgresql://x@127.0.0.1:1/x", "redis_urls": ["redis://127.0.0.1:1"]}
    (site.folder / "run.json").write_text(json.dumps(stale))
    site.start()
    wait_for(lambda: (run := site.run_file()) and run["pid"] == site.up.pid, "the run file")
    second = site.manage("up")
    assert second.returncode == 1
    assert second.stderr.strip().endswith(f"is in use by process {site.up.pid}. Choose another with DATA_DIR.")
    site.up.send_signal(signal.SIGTERM)  # while it still starts
    site.wait_until_gone()
    assert "Stopped." in site.output() and "Traceback" not in site.output()
