"""Calls from the bench into a process that it has started, over a Unix socket: name and arguments, result."""

import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

POLL_S = 0.05


def serve(path: Path, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Answer the calls of one client after another, in this thread, until the process ends."""
    with Listener(str(path), "AF_UNIX") as listener:
        while True:
            with listener.accept() as connection:
                _answer(connection, functions)


def serve_in_thread(path: Path, functions: Mapping[str, Callable[..., Any]]) -> None:
    """serve() beside the process's own work."""
    threading.Thread(target=serve, args=(path, functions), name="bench", daemon=True).start()


def _answer(connection: Connection, functions: Mapping[str, Callable[..., Any]]) -> None:
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        connection.send(functions[name](*arguments))


class Remote:
    """A process that serves at `path`; waits up to `timeout_s` for it, as long as `is_alive()`."""

    def __init__(self, path: Path, is_alive: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._connection = Client(str(path), "AF_UNIX")
                return
            except (FileNotFoundError, ConnectionRefusedError):
                if not is_alive() or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def call(self, name: str, *arguments: Any) -> Any:
        """The function's result."""
        self._connection.send((name, arguments))
        return self._connection.recv()
