"""Housekeeping of the token logs' keys (inference.token_log has their meaning), from threads without an event loop."""

import functools
from collections.abc import Iterable, Iterator
from uuid import UUID

import redis
from django.conf import settings

KEPT = ("log:", "attempt:")  # these stay until their generation has ended
BATCH = 1000


@functools.cache
def shards() -> list[redis.Redis]:
    """A client for each Valkey. Their calls raise redis.RedisError."""
    options = {"socket_timeout": settings.REDIS_TIMEOUT_S, "socket_connect_timeout": settings.REDIS_TIMEOUT_S}
    return [redis.Redis.from_url(url, retry=None, **options) for url in settings.REDIS_URLS]


def forget(generations: Iterable[UUID]) -> None:
    """Delete the logs of generations that have ended. Raises redis.RedisError."""
    of_shard: dict[int, list[str]] = {}
    for generation in generations:
        names = [f"{prefix}{generation}" for prefix in (*KEPT, "viewers:")]
        of_shard.setdefault(generation.int % len(shards()), []).extend(names)
    for number, names in of_shard.items():
        for start in range(0, len(names), BATCH):
            shards()[number].unlink(*names[start : start + BATCH])


def kept() -> Iterator[UUID]:
    """Generations with a log or a fence that never expires. Raises redis.RedisError."""
    for shard in shards():
        for prefix in KEPT:
            keys: list[bytes] = list(shard.scan_iter(match=prefix + "*", count=BATCH))
            for start in range(0, len(keys), BATCH):
                part = keys[start : start + BATCH]
                pipeline = shard.pipeline(transaction=False)
                for key in part:
                    pipeline.ttl(key)
                for key, seconds in zip(part, pipeline.execute(), strict=True):
                    if seconds == -1:
                        yield UUID(key.decode().removeprefix(prefix))
