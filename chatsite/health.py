"""Whether this process lives (/healthz), and whether the site can answer a prompt (/readyz)."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, JsonResponse

from chatsite import draining
from inference.models import Worker

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
    worker, valkey = await asyncio.gather(_ask(_has_ready_worker), _ask(_valkey_answers))
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


async def _ask(check: Callable[[], bool]) -> bool | None:
    """The check's result; None when its store fails, or does not answer within PATIENCE_S."""
    loop = asyncio.get_running_loop()
    try:
        return await asyncio.wait_for(loop.run_in_executor(_threads, check), PATIENCE_S)
    except (TimeoutError, DatabaseError, redis.RedisError):
        return None


def _has_ready_worker() -> bool:
    try:
        return Worker.objects.filter(state="READY", lease_until__gt=Now()).exists()
    finally:
        connection.close()  # back to the pool: this thread may not be asked again for long


def _valkey_answers() -> bool:
    return all(client.ping() for client in clients())


@functools.cache
def clients() -> list[redis.Redis]:
    """This process's connections to every Valkey, for health checks only."""
    options = {"socket_timeout": PATIENCE_S, "socket_connect_timeout": PATIENCE_S, "retry": None}
    return [redis.Redis.from_url(url, **options) for url in settings.REDIS_URLS]
