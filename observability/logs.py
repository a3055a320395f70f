"""Logs: one line an event, as text or JSON, each with the request and the generation that it belongs to.

`bound()` says whom the lines of a block belong to; asyncio tasks and our thread hops take that along. An exception that
only says that a store is away is one line without its traceback: whoever logs it tries again.
"""

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

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


class Line(logging.Formatter):
    """A line for people: ids at its end, where there are any."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        found = ((name, getattr(record, name, "")) for name in ("request", "generation"))
        ids = "".join(f" {name}={value}" for name, value in found if value)
        first, *rest = line.split("\n", 1)
        return "\n".join([first + ids, *rest])
