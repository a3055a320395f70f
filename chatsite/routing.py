"""Which ASGI application answers: streams go to their consumers, past Django's middleware; the rest is Django's."""

import re
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from django.core.asgi import get_asgi_application

django_application = get_asgi_application()  # sets Django up: before anything that imports models

from chatsite import draining  # noqa: E402
from conversations import consumers, openai, sockets, sse  # noqa: E402
from conversations.http import Receive, Scope, Send, announces_too_much, header, send_refusal, too_large  # noqa: E402

Application = Callable[[Scope, Receive, Send], Awaitable[Any]]

_CONVERSATION = re.compile(
    r"/(?P<root>api/v1|ws)/conversations/(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:/(?P<rest>stream|messages))?/?",
    re.IGNORECASE,
)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """The whole site."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    if draining.is_on() and scope["type"] == "http":
        send = draining.closing(send)
    route = _websocket(scope) if scope["type"] == "websocket" else _stream(scope)
    await (route or _django)(scope, receive, send)


def _websocket(scope: Scope) -> Application:
    if scope["path"].rstrip("/") == "/ws/user":
        return sockets.UserConsumer.as_asgi()  # type: ignore[no-any-return]
    found = _CONVERSATION.fullmatch(scope["path"])
    if found and found["root"] == "ws" and found["rest"] is None:
        scope["conversation_id"] = UUID(found["id"])
        return consumers.ConversationConsumer.as_asgi()  # type: ignore[no-any-return]
    return sockets.no_such_socket


def _stream(scope: Scope) -> Application | None:
    method, path = scope["method"], scope["path"]
    if method == "POST" and path == "/v1/chat/completions":
        return openai.chat_completions
    found = _CONVERSATION.fullmatch(path)
    if not found or found["root"] != "api/v1":
        return None
    scope["conversation_id"] = UUID(found["id"])
    if method == "GET" and found["rest"] == "stream":
        return sse.stream
    if method == "POST" and found["rest"] == "messages" and "text/event-stream" in (header(scope, b"accept") or ""):
        return sse.send_message
    return None


async def _django(scope: Scope, receive: Receive, send: Send) -> None:
    if announces_too_much(scope):
        await send_refusal(send, too_large())
    else:
        await django_application(scope, receive, send)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
