"""Log lines: whom they belong to, a store's absence in one line, repeats once in a while."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
import redis
from django.db import IntegrityError, OperationalError

from inference import logs


class Kept(logging.Handler):
    """Keeps the lines that the filters let through."""

    def __init__(self, *filters: logging.Filter) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(logs.Line("{levelname} {message}", style="{"))
        for each in filters:
            self.addFilter(each)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept(logs.Context(), logs.Repeats())
    log = logging.getLogger("tests.logs")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


log = logging.getLogger("tests.logs")


@pytest.mark.parametrize("error", [redis.ConnectionError("away"), OperationalError("server closed\nthe connection")])
def test_a_store_that_is_away_is_one_line(kept: Kept, error: Exception) -> None:
    try:
        raise error
    except Exception:
        log.exception("reading failed\nbadly")
    (line,) = kept.lines
    assert "\n" not in line and line.startswith("ERROR reading failed (a store is away, this is tried again: ")


@pytest.mark.parametrize("error", [IntegrityError("twice"), redis.ResponseError("script"), KeyError("x")])
def test_a_bug_keeps_its_traceback(kept: Kept, error: Exception) -> None:
    with logs.bound(request="r-1", generation="g-1"):
        try:
            raise error
        except Exception:
            log.exception("it broke")
    first, *rest = kept.lines[0].splitlines()
    assert first == "ERROR it broke request=r-1 generation=g-1"
    assert rest[0].startswith("Traceback") and type(error).__name__ in rest[-1]


def test_repeats_are_said_once_with_their_number(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        log.warning("attempt %d failed", number)
    assert kept.lines == ["WARNING attempt 0 failed"]
    monkeypatch.setattr(logs.Repeats, "EVERY_S", 0.0)
    log.warning("attempt %d failed", 100)
    assert kept.lines[1:] == ["WARNING attempt 100 failed (and 99 more)"]


def test_what_belongs_to_a_generation_is_always_said(kept: Kept) -> None:
    for number in range(3):
        with logs.bound(request="", generation=number):
            log.warning("it failed")
    assert kept.lines == [f"WARNING it failed generation={number}" for number in range(3)]


async def test_tasks_inherit_whom_they_work_for_and_threads_are_told(kept: Kept) -> None:
    async def work() -> None:
        await asyncio.to_thread(log.info, "in a thread")

    log.setLevel(logging.INFO)
    with logs.bound(request="r", generation="g"):
        task = asyncio.create_task(work())
    await task
    log.info("after")
    assert kept.lines == ["INFO in a thread request=r generation=g", "INFO after"]
