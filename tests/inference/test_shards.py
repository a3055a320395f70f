"""The relay's store clients."""

import asyncio

import pytest

from inference import leftovers
from inference.shards import stores


async def follow() -> None:
    """As a reader: a command, and then a wait without end."""
    await stores()[0].llen("nobody's")
    await asyncio.Event().wait()


@pytest.mark.parametrize("steps", range(12))
async def test_whoever_is_cancelled_during_a_command_ends(steps: int) -> None:
    """At whatever step of it; asyncio.wait_for of Python 3.11 swallows some."""
    await stores()[0].ping()
    for _ in range(20):
        task = asyncio.create_task(follow())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        _, pending = await asyncio.wait([task], timeout=5)
        assert not pending


async def test_a_connection_that_the_server_has_closed_fails_nobody() -> None:
    """As after a restart of Valkey."""
    store = stores()[0]
    assert await store.ping()
    (idle,) = store.connection_pool._available_connections
    await asyncio.to_thread(leftovers.shards()[0].client_kill_filter, _type="normal", skipme=True)
    while not idle._reader.at_eof():
        await asyncio.sleep(0.01)
    assert await store.ping()
