"""A web process that was told to stop (chatsite.serve): what it still does, and what it tells its readers.

At once: it takes no new connection, is not ready, closes each connection after its response, and ends native SSE
streams with a hint to reconnect; WebSockets are closed with 1012. Streams of /v1, whose clients cannot resume, go on
for WEB_DRAIN seconds; then they end with an error that says so.
"""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from conversations.http import Send
from inference import relay

_stopping = threading.Event()


def begin() -> None:
    """On the event loop: from now on this process stops."""
    _stopping.set()
    relay.let_go(everyone=False)


def is_on() -> bool:
    """Whether this process was told to stop."""
    return _stopping.is_set()


async def cut_after(seconds: float) -> None:
    """End what still streams after this time, in order."""
    await asyncio.sleep(seconds)
    relay.let_go(everyone=True)


def closing(send: Send) -> Send:
    """`send` for a response after which its connection is closed."""

    async def send_last(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return send_last
