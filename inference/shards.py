"""The Valkey shards of the relay, as clients of the running event loop."""

import asyncio
import weakref
from typing import Any
from uuid import UUID

import redis.asyncio
from django.conf import settings


class Store(redis.asyncio.Redis):
    """A client whose commands have REDIS_TIMEOUT_S each; later ones raise redis.TimeoutError.

    redis-py's own socket_timeout is asyncio.wait_for, which on Python 3.11 swallows a cancellation that comes as the
    write ends: the task of a reader who left would follow on for ever. It makes a task for each command, too.
    """

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            async with asyncio.timeout(settings.REDIS_TIMEOUT_S):
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except TimeoutError as error:
            raise redis.TimeoutError(f"no answer in {settings.REDIS_TIMEOUT_S:g} s") from error


_stores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[Store]] = weakref.WeakKeyDictionary()


def stores() -> list[Store]:
    """The shards' clients of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _stores:
        _stores[loop] = [
            Store(
                connection_pool=redis.asyncio.BlockingConnectionPool.from_url(
                    url,
                    max_connections=settings.REDIS_CONNECTIONS,
                    timeout=settings.REDIS_TIMEOUT_S,  # a burst of readers waits its turn instead of failing
                    socket_timeout=None,  # there is a default
                    maint_notifications_config=settings.REDIS_QUIET,
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


def store_of(key: UUID) -> Store:
    """The shard itself."""
    return stores()[shard_of(key)]
