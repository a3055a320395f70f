"""The channel layer, and nothing else of the relay: one message to one channel, and listening. Its only importer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from channels.layers import get_channel_layer
from django.conf import settings
from redis.exceptions import RedisError

from inference import metrics
from inference.protocol import Message, decode, encode

log = logging.getLogger(__name__)

RESTART_S = 1.0  # a task that failed starts again after this


async def push(batches: Mapping[str, list[Message]]) -> None:
    """One message per channel; what cannot be sent in time is dropped."""
    layer = get_channel_layer()
    for channel, messages in batches.items():
        try:
            async with asyncio.timeout(settings.HINT_TIMEOUT_S):
                await layer.send(channel, {"type": "relay", "data": encode(messages)})
        except (TimeoutError, RedisError, OSError) as error:
            metrics.hints_lost.labels(type(messages[0]).__name__.lower()).inc()
            log.warning("%d messages to %s lost: %r", len(messages), channel, error)


async def new_channel(prefix: str) -> str:
    """A channel of this process. Raises RedisError."""
    name: str = await get_channel_layer().new_channel(prefix)
    return name


async def listen(channel: str, receive: Callable[[Message], None]) -> None:
    """Hand every message that arrives on `channel` to `receive`; runs until its task is cancelled."""
    layer = get_channel_layer()
    while True:
        message = await layer.receive(channel)
        for part in decode(message["data"]):
            receive(part)


async def forever(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` until cancelled: when it fails, that is logged and it starts again."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("a task of the relay failed; it starts again")
            await asyncio.sleep(RESTART_S)
