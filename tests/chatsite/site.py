"""A whole local site of its own for a test: `manage.py up` in its own DATA_DIR, on its own port."""

import http.client
import json
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
from typing import Any

import psutil

from chatsite.stores import free_port

REPOSITORY = Path(__file__).resolve().parent.parent.parent
OURS = {"DATABASE_URL", "REDIS_URL", "SECRET_KEY", "ADMIN_EMAIL", "ADMIN_PASSWORD"}


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 30) -> Any:
    """The first true value of `condition`; fails the test when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)
    return found


def _lives(process: psutil.Process) -> bool:
    # An orphan whose new parent does not reap it (a container without an init) has ended all the same.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Site:
    """Starts and watches one `manage.py up`. Echo engine; stores of its own."""

    def __init__(self, **env: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="chatsite-up-"))
        self.folder.chmod(0o711)  # as root, PostgreSQL's own user must get through
        self.port = free_port()
        inherited = {name: value for name, value in os.environ.items() if name not in OURS}
        own = {"DATA_DIR": str(self.folder), "PORT": str(self.port), "ENGINE": "echo", "DRAIN": "1", "WEB_DRAIN": "1"}
        self.env = inherited | own | env
        self._output = self.folder / "output"
        self._seen: set[psutil.Process] = set()

    def start(self) -> None:
        with self._output.open("wb") as output:
            self.up = psutil.Popen(
                [sys.executable, str(REPOSITORY / "manage.py"), "up"],
                env=self.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._seen = {self.up}

    def output(self) -> str:
        return self._output.read_text()

    def wait_for_address(self) -> None:
        """Return once it has printed its address; fails with its output when it ends before."""

        def said() -> bool:
            assert self.up.poll() is None, self.output()
            return f"http://127.0.0.1:{self.port}/" in self.output()

        wait_for(said, "the address", 60)
        self.processes()

    def processes(self) -> set[psutil.Process]:
        """Every process of the site that lives now."""
        found = {self.up, *self.up.children(recursive=True)}
        self._seen |= found
        return found

    def process(self, word: str) -> psutil.Process | None:
        """The process that `up`'s supervisor runs with `word` in its command line, if it lives."""
        for process in self.processes():
            try:
                if process.ppid() != self.up.pid and word in " ".join(process.cmdline()):
                    return process
            except psutil.Error:
                continue
        return None

    def supervisord(self) -> psutil.Process:
        return next(child for child in self.up.children() if "supervisord" in " ".join(child.cmdline()))

    def wait_until_gone(self, timeout_s: float = 60) -> None:
        """Return once nothing of it lives; fails with what does."""
        left: list[psutil.Process] = []

        def gone() -> bool:
            self.up.poll()
            left[:] = [process for process in self._seen if _lives(process)]
            return not left

        wait_for(gone, f"end of {left}", timeout_s)

    def status(self, path: str) -> int | None:
        """The HTTP status of a page; None when nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def open_stream(self, n: int = 50000) -> http.client.HTTPResponse:
        """A /v1 stream of an answer of `n` tokens, after the first one. The site must be ready."""
        self.manage("create_user", "ada@example.org", "--password", "a long enough one")
        key = self.manage("create_key", "ada@example.org").stdout.strip()
        messages = [{"role": "user", "content": f"[[n={n} itl=20]]"}]
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps({"model": "echo", "stream": True, "messages": messages}),
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        response = connection.getresponse()
        assert response.status == 200, response.read()
        while b"t00000" not in (line := response.readline()):
            assert line, "the stream ended before its first token"
        return response

    def manage(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a manage.py command beside the site."""
        argv = [sys.executable, str(REPOSITORY / "manage.py"), *arguments]
        return subprocess.run(argv, check=False, env=self.env, cwd="/", capture_output=True, text=True, timeout=60)

    def run_file(self) -> dict[str, Any] | None:
        """What the site says of itself; None while it says nothing."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return found

    def remove(self) -> None:
        """End what is left, whatever the test did."""
        for process in self._seen:
            if process.is_running():
                process.kill()
        psutil.wait_procs(list(self._seen), timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)
