"""Logs: one line an event, as text or JSON, each with the request and the generation that it belongs to.

`bound()` says whom the lines of a block belong to; asyncio tasks and our thread hops take that along. An exception that
only says that a store is away is one line without its traceback: whoever logs it tries again.
"""

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from time import monotonic
from typing import Any

import psycopg
from django.db import InterfaceError, OperationalError
from kombu.exceptions import OperationalError as BrokerError
from redis import exceptions as redis

_request: ContextVar[str] = ContextVar("request", default="")
_generation: ContextVar[str] = ContextVar("generation", default="")
AWAY = (
    redis.ConnectionError, redis.TimeoutError, OperationalError, InterfaceError, psycopg.OperationalError, BrokerError,
    ConnectionError, TimeoutError,
)  # fmt: skip


def request_id() -> str:
    """Of the request that this code works for; empty where there is none."""
    return _request.get()


def begin_request(name: str) -> None:
    """The lines of this task, to its end, belong to this request."""
    _request.set(name)


@contextlib.contextmanager
def bound(*, request: str, generation: object) -> Iterator[None]:
    """The lines of the block belong to a request and a generation."""
    before = _request.set(request), _generation.set(str(generation))
    try:
        yield
    finally:
        _request.reset(before[0])
        _generation.reset(before[1])


class Context(logging.Filter):
    """On the handler: gives each record its `request` and `generation`, and a store's absence one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request = _request.get()
        record.generation = getattr(record, "generation", "") or _generation.get()
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, AWAY):
            said = record.getMessage().splitlines() or [""]
            record.msg = f"{said[0]} (a store is away, this is tried again: {type(error).__name__}: {error})"
            record.args, record.exc_info, record.exc_text = None, None, None
        return True


class Repeats(logging.Filter):
    """On the handler, after Context: of equal warnings that belong to no request one each EVERY_S, with their number.

    While a store is away, what tries again 25 times a second would fill the disk with one sentence.
    """

    EVERY_S = 5.0

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[str, str], tuple[float, int]] = {}  # when last, and how often not since

    def filter(self, record: logging.LogRecord) -> bool:
        said: Any = record
        if record.levelno < logging.WARNING or record.exc_info or said.request or said.generation:
            return True
        now, key = monotonic(), (record.name, str(record.msg))
        last, missed = self._said.get(key, (-self.EVERY_S, 0))
        if now - last < self.EVERY_S:
            self._said[key] = (last, missed + 1)
            return False
        if len(self._said) >= 1000:  # sentences that were put together before they were logged
            self._said.clear()
        self._said[key] = (now, 0)
        if missed:
            record.msg, record.args = f"{record.getMessage()} (and {missed} more)", None
        return True


class Line(logging.Formatter):
    """A line for people: ids at its end, where there are any."""

    def format(self, record: logging.LogRecord) -> str:
        found = ((name, getattr(record, name, "")) for name in ("request", "generation"))
        ids = "".join(f" {name}={value}" for name, value in found if value)
        first, *rest = filter(None, map(str.rstrip, super().format(record).splitlines()))
        if not (record.exc_info or record.stack_info):
            return " ".join([first, *map(str.strip, rest)]) + ids
        return "\n".join([first + ids, *rest])
