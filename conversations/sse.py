"""The native stream as Server-Sent Events. A disconnect does not cancel: people come back, and resume."""

import random

from billing.authentication import authenticate
from billing.bodies import parse
from billing.errors import Refusal
from conversations import operations
from conversations.frames import NATIVE_PING, native_retry, native_sse
from conversations.http import (
    ClientLeft,
    Receive,
    Scope,
    Send,
    event_stream,
    hop,
    parse_object,
    read_body,
    send_refusal,
    until_disconnect,
)
from conversations.schemas import SendBody
from conversations.streams import Found, error_event, find_stream, following, position_of

RECONNECT_MS = (100, 1000)


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    """GET …/conversations/{id}/stream: follow or resume. 204, which ends an EventSource, when there is nothing."""
    try:
        found = await hop(_find, scope)
        if found is None:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await until_disconnect(receive, _write(send, found))
    except Refusal as refusal:
        await send_refusal(send, refusal)


async def send_message(scope: Scope, receive: Receive, send: Send) -> None:
    """POST …/conversations/{id}/messages, streamed: send a message and follow its answer. API keys only."""
    try:
        body = await read_body(scope, receive)
        found = await hop(_send, scope, body)
        await until_disconnect(receive, _write(send, found))
    except Refusal as refusal:
        await send_refusal(send, refusal)
    except ClientLeft:
        pass


def _find(scope: Scope) -> Found | None:
    principal = authenticate(scope)
    conversation = operations.owned(principal.user, scope["conversation_id"])
    return find_stream(conversation, position_of(scope))


def _send(scope: Scope, body: bytes) -> Found:
    principal = authenticate(scope, keys_only=True)
    arguments = parse(SendBody, parse_object(body)).arguments()
    sent = operations.send(principal=principal, conversation_id=scope["conversation_id"], **arguments)
    return Found(sent.generation.pk, 0)


async def _write(send: Send, found: Found) -> None:
    """The response. Raises Refusal when it cannot begin; what breaks later is an `error` event.

    A process that is told to stop ends it early, with the time after which to resume at another one.
    """
    async with (
        following(found, comes_back=True) as events,
        event_stream(send, ping=NATIVE_PING, headers=[]) as write,
    ):
        seq, has_ended = found.after, False
        try:
            async for event in events:
                seq, has_ended = event.seq, event.is_terminal
                await write(native_sse(event))
            if not has_ended:
                await write(native_retry(random.randint(*RECONNECT_MS)))  # noqa: S311 - spreads their return
        except Refusal as refusal:
            await write(native_sse(error_event(refusal, found.generation, seq)))
