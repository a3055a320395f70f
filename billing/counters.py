"""Reservations in Valkey: the only user of the limit keys. Each step is one Lua script, so check-and-add is one.

`open:{user}` is a hash of generation id → reserved tokens. A store that does not answer in time means a
Refusal with 503: never unlimited, never a 500.
"""

import functools
import logging
from collections.abc import Iterable
from uuid import UUID

import redis
from django.conf import settings

from billing.errors import unavailable

log = logging.getLogger(__name__)

RESERVE = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 1 end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""


@functools.cache
def store() -> redis.Redis:
    """The counters' connection pool; one per process."""
    pool = redis.BlockingConnectionPool.from_url(
        settings.REDIS_URLS[0],
        max_connections=settings.REDIS_CONNECTIONS,
        timeout=settings.REDIS_TIMEOUT_S,
        socket_timeout=settings.REDIS_TIMEOUT_S,
        socket_connect_timeout=settings.REDIS_TIMEOUT_S,
        retry=None,
    )
    return redis.Redis(connection_pool=pool)


def _key(user_id: UUID) -> str:
    return f"open:{user_id}"


def reserve(user_id: UUID, generation_id: UUID, tokens: int, max_open: int) -> bool:
    """Reserve one of the user's `max_open` places; False when all are taken. Reserving twice is harmless.

    Raises Refusal (unavailable).
    """
    try:
        return bool(store().eval(RESERVE, 1, _key(user_id), str(generation_id), tokens, max_open))
    except redis.RedisError as error:
        log.warning("reservation store: %s", error)
        raise unavailable() from error


def release(user_id: UUID, generation_ids: Iterable[UUID]) -> None:
    """Give places back. A store that is away is logged: the sweep finds what is left."""
    names = [str(generation_id) for generation_id in generation_ids]
    if not names:
        return
    try:
        store().hdel(_key(user_id), *names)
    except redis.RedisError as error:
        log.warning("reservation not released (the sweep will): %s", error)


def open_generations(user_id: UUID) -> list[UUID]:
    """The generations that hold a place. Raises redis.RedisError."""
    names: list[bytes] = store().hkeys(_key(user_id))  # type: ignore[assignment]
    return [UUID(name.decode()) for name in names]


def users_with_reservations() -> Iterable[UUID]:
    """Users who hold any place. Raises redis.RedisError."""
    for key in store().scan_iter(match="open:*", count=1000):
        yield UUID(key.decode().removeprefix("open:"))


def left_twice(user_id: UUID, generation_ids: Iterable[UUID]) -> list[UUID]:
    """Those of `generation_ids` that were passed in the last call too: for sweeps a minute apart.

    Raises redis.RedisError.
    """
    key, names = f"left:{user_id}", {str(generation_id) for generation_id in generation_ids}
    pipeline = store().pipeline()
    pipeline.smembers(key)
    pipeline.delete(key)
    if names:
        pipeline.sadd(key, *names)
        pipeline.expire(key, 600)
    before = {name.decode() for name in pipeline.execute()[0]}
    return [UUID(name) for name in before & names]
