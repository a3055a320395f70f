"""Many streams at once, and windows of time in which all of them run."""

import asyncio
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import psutil

from bench.load import Answer, Client, order, verify
from bench.site import Site, used_between
from chatsite.stores import free_port

Open = tuple[float, bytes, Answer]  # seconds from now, request, its answer


@dataclass(frozen=True)
class Window:
    """A stretch of time, and the CPU seconds that each kind of process used in it."""

    began: float
    ended: float
    used: dict[str, float]

    def tokens(self, answers: Iterable[Answer]) -> int:
        """Numbered tokens that arrived in it."""
        return sum(1 for answer in answers for _, at in answer.arrivals() if self.began <= at < self.ended)


def opens_together(client: Client, streams: int, *, itl_ms: float, ramp: float, last: float) -> list[Open]:
    """Streams opened evenly over `ramp` seconds, all of which end about `last` seconds from the beginning."""
    opens = []
    for number in range(streams):
        after = ramp * number / streams
        n = int((last - after) * 1000 / itl_ms)
        opens.append((after, client.chat(order(n, itl_ms=itl_ms)), Answer(n)))
    return opens


async def measured(
    site: Site, client: Client, opens: list[Open], first: float, seconds: list[float]
) -> tuple[list[Answer], list[Window]]:
    """Run the streams; from `first` seconds on, windows of these lengths."""
    running = asyncio.create_task(client.staggered(opens))
    await asyncio.sleep(first)
    windows = []
    for length in seconds:
        before, began = await asyncio.to_thread(site.cpu), monotonic()
        await asyncio.sleep(length)
        after, ended = await asyncio.to_thread(site.cpu), monotonic()
        windows.append(Window(began, ended, used_between(before, after)))
    return await running, windows


def lags(answer: Answer, itl_s: float) -> list[tuple[float, float]]:
    """(arrival, lag) of each token: seconds behind the stream's own schedule.

    The echo engine produces token k exactly k × itl after the first, whatever happened to those before. So
    arrival − k × itl is constant in a perfect stream; its smallest value in the stream is taken as on time.
    What every token of a stream needs at least (a few ms, see the first-token figure) is therefore left out.
    """
    offsets = [(at, at - k * itl_s) for k, at in answer.arrivals()]
    best = min((offset for _, offset in offsets), default=0.0)
    return [(at, offset - best) for at, offset in offsets]


def must_be_whole(answers: list[Answer]) -> None:
    """A figure about answers that were lost or damaged means nothing: SystemExit."""
    damage = verify(answers)
    if damage:
        raise SystemExit(f"the answers are not whole: {damage}")


@contextmanager
def bare_server(site: Site) -> Iterator[tuple[Client, psutil.Process]]:
    """bench.bare, served as the site is."""
    port = free_port()
    argv = [sys.executable, "-m", "uvicorn", "bench.bare:application", "--port", str(port), "--lifespan", "off"]
    child = site.start("bare", [*argv, "--no-access-log", "--backlog", "4096"])
    client = Client(f"http://127.0.0.1:{port}")

    def answers() -> bool:
        try:
            asyncio.run(client.connect())
        except OSError:
            return False
        return True

    site.wait(answers, "the bare server answers", child)
    try:
        yield client, psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait()
