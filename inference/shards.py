"""The Valkey shards of the relay, as clients of the running event loop."""

import asyncio
import weakref
from uuid import UUID

import redis.asyncio
from django.conf import settings

_stores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list["redis.asyncio.Redis"]] = weakref.WeakKeyDictionary()


def stores() -> list["redis.asyncio.Redis"]:
    """The shards' clients of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _stores:
        _stores[loop] = [
            redis.asyncio.Redis(
                connection_pool=redis.asyncio.BlockingConnectionPool.from_url(
                    url,
                    max_connections=settings.REDIS_CONNECTIONS,
                    timeout=settings.REDIS_TIMEOUT_S,  # a burst of readers waits its turn instead of failing
                    socket_timeout=settings.REDIS_TIMEOUT_S,
                    socket_connect_timeout=settings.REDIS_TIMEOUT_S,
                    retry=None,
                )
            )
            for url in settings.REDIS_URLS
        ]
    return _stores[loop]


def shard_of(key: UUID) -> int:
    """The number of the shard that holds everything of a generation or a topic."""
    return key.int % len(settings.REDIS_URLS)


def store_of(key: UUID) -> "redis.asyncio.Redis":
    """The shard itself."""
    return stores()[shard_of(key)]
