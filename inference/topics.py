"""News about a topic, such as a person's list of chats, on their way to one page."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from uuid import UUID

from inference.protocol import News

BUFFER = 100


class Subscription:
    """What was told about one topic and not yet taken; of too much the oldest is forgotten."""

    def __init__(self, topic: UUID) -> None:
        self.topic = topic
        self._news: deque[News] = deque(maxlen=BUFFER)
        self._wake = asyncio.Event()

    def offer(self, news: News) -> None:
        self._news.append(news)
        self._wake.set()

    async def news(self) -> AsyncIterator[News]:
        """Everything that is told from now on; endless."""
        while True:
            while self._news:
                yield self._news.popleft()
            self._wake.clear()
            await self._wake.wait()
