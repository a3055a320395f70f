"""Whether this process lives (/healthz), and whether the site can answer a prompt (/readyz)."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, JsonResponse

from chatsite import draining
from inference.models import Worker

T = TypeVar("T")

PATIENCE_S = 1.0
# Their own few threads: checks of a store that hangs pile up nowhere else.
_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="readyz")


async def healthz(request: HttpRequest) -> HttpResponse:
    """200: the process answers. Touches no store."""
    return HttpResponse("ok", content_type="text/plain")


async def readyz(request: HttpRequest) -> JsonResponse:
    """200 when database, Valkey and at least one worker can serve; else 503. The body says which cannot.

    Also 503 once this process was told to stop.
    """
    worker, valkey = await asyncio.gather(_ask(_has_ready_worker), _ask(valkey_answers))
    body = {
        "database": "unreachable" if worker is None else "ok",
        "valkey": "ok" if valkey else "unreachable",
        "worker": "unknown" if worker is None else "ready" if worker else "none",
    }
    if draining.is_on():
        body["web"] = "stopping"
    ready = bool(worker and valkey and not draining.is_on())
    response = JsonResponse({"ready": ready, **body}, status=200 if ready else 503)
    # Django would log each 503 as an error of ours; whoever polls this already knows.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def stores() -> dict[str, str]:
    """Whether database and Valkey answer, "ok" or "unreachable"; for processes without an event loop."""
    asked = {"database": _begin(_database_answers), "valkey": _begin(valkey_answers)}
    return {name: "ok" if _result(future) else "unreachable" for name, future in asked.items()}


def in_time(check: Callable[[], T]) -> T | None:
    """The check's result; None when its store fails, or does not answer within PATIENCE_S."""
    return _result(_begin(check))


async def _ask(check: Callable[[], bool]) -> bool | None:
    """in_time, on an event loop."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(_begin(check)), PATIENCE_S)
    except (TimeoutError, DatabaseError, redis.RedisError):
        return None


def _begin(check: Callable[[], T]) -> "Future[T]":
    def run() -> T:
        try:
            return check()
        finally:
            connection.close()  # back to the pool: this thread may not be asked again for long

    return _threads.submit(run)


def _result(future: "Future[T]") -> T | None:
    try:
        return future.result(PATIENCE_S)
    except (TimeoutError, DatabaseError, redis.RedisError):
        return None


def _has_ready_worker() -> bool:
    return Worker.objects.filter(state="READY", lease_until__gt=Now()).exists()


def _database_answers() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return True


def valkey_answers() -> bool:
    """Whether every Valkey answers. Raises redis.RedisError."""
    return all(client.ping() for client in clients())


@functools.cache
def clients() -> list[redis.Redis]:
    """This process's connections to every Valkey, for health checks only."""
    options = {"socket_timeout": PATIENCE_S, "socket_connect_timeout": PATIENCE_S, "retry": None}
    return [redis.Redis.from_url(url, **options) for url in settings.REDIS_URLS]
