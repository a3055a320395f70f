"""What every WebSocket does: who may open it, what it hears of one's chats, when it ends. /ws/user is only that."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any
from uuid import UUID

from channels.consumer import get_handler_name
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer

from billing.authentication import authenticate, session_key
from billing.errors import Refusal, not_found
from conversations.frames import to_json
from conversations.http import Receive, Scope, Send, header, hop, send_json
from conversations.notices import session_name
from inference import relay
from inference.protocol import News

LOGGED_OUT = 4401  # close code: the session has ended, or the key was revoked
RECHECK_S = 60.0  # a socket that is about to tell something asks this often whether it still may


async def no_such_socket(scope: Scope, receive: Receive, send: Send) -> None:
    """Any other WebSocket path."""
    await receive()
    await refuse(scope, send, not_found("page"))


async def refuse(scope: Scope, send: Send, refusal: Refusal) -> None:
    """Reject a handshake: with the refusal's status where the server can, with 403 elsewhere (Daphne)."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close"})
        return

    async def send_http(message: Mapping[str, Any]) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    await send_json(send_http, refusal.status, refusal.body(), refusal.headers())


class UserConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """One socket of one person: what becomes of their chats. It has no channel: the relay has one per process."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.base_send = scope, send
        self.tasks: set[asyncio.Task[None]] = set()
        async with AsyncExitStack() as self.stack:
            try:
                while True:
                    await self.dispatch(await receive())
            except StopConsumer:
                pass
            finally:
                for task in self.tasks:
                    task.cancel()
                if self.tasks:
                    await asyncio.wait(self.tasks)

    async def dispatch(self, message: dict[str, Any]) -> None:
        # Channels would hop to a thread here to close database connections; ours are closed in each hop.
        await getattr(self, get_handler_name(message))(message)

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task that ends with the socket."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def websocket_connect(self, message: dict[str, Any]) -> None:
        try:
            user = await hop(_who, self.scope)
        except Refusal as refusal:
            await refuse(self.scope, self.base_send, refusal)
            raise StopConsumer from None
        await self.open(user)

    async def open(self, user: UUID) -> None:
        """Accept, once nothing that is told from now on can be missed."""
        self.checked_at = monotonic()
        cookies = header(self.scope, b"cookie")
        key = session_key(cookies) if cookies and header(self.scope, b"authorization") is None else None
        self.session = session_name(key) if key else None
        news = await self.stack.enter_async_context(relay.subscribed(user))
        await self.accept()
        self.start(self.tell_news(news))

    async def websocket_disconnect(self, message: dict[str, Any]) -> None:
        raise StopConsumer

    async def websocket_receive(self, message: dict[str, Any]) -> None:
        """There is nothing to say here."""

    async def tell_news(self, news: AsyncIterator[News]) -> None:
        """Pass on what becomes of this person's chats, for as long as they may hear it."""
        async for item in news:
            if await self._has_ended(item):
                await self.close(LOGGED_OUT)
                return
            if item.kind == "chats":
                await self.pass_on(item)

    async def _has_ended(self, item: News) -> bool:
        if item.kind == "session":
            return self.session is not None and item.data["ended"] == self.session
        if monotonic() - self.checked_at < RECHECK_S:
            return False
        self.checked_at = monotonic()
        try:
            await hop(_who, self.scope)
        except Refusal as refusal:
            return refusal.status in (401, 403)
        return False

    async def pass_on(self, news: News) -> None:
        await self.send(text_data=to_json({"event": news.kind, **news.data}))


def _who(scope: Scope) -> UUID:
    """Who connects. Raises Refusal (401, 403)."""
    return authenticate(scope).user.pk
