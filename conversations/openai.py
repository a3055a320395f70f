"""POST /v1/chat/completions, OpenAI-compatible: one database hop, then frames.

A client that leaves cancels its generation at once or, when it gave an Idempotency-Key, RETRY_S later unless a
retry has attached by then. The end is never dressed up: an answer that failed or was cancelled ends its stream
with `data: {"error": …}`, which the official client raises as APIError, and without `[DONE]`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings

from billing.admission import limit_headers
from billing.authentication import authenticate
from billing.errors import Refusal
from billing.limits import headers
from billing.operations import Principal
from conversations import operations
from conversations.completions import Call, complete
from conversations.frames import OPENAI_DONE, OPENAI_PING, Chunks, openai_finish, openai_usage, said_instead, to_json
from conversations.http import (
    ClientLeft,
    Receive,
    Scope,
    Send,
    event_stream,
    header,
    hop,
    parse_object,
    read_body,
    run_detached,
    send_json,
    until_disconnect,
)
from conversations.openai_request import ChatRequest, checked_key, parse_request
from inference import metrics, relay
from inference.engine import Sampling
from inference.models import Generation, ServedModel
from inference.operations import cancel, find_model, has_worker
from inference.protocol import Event
from inference.queueing import stand_in

log = logging.getLogger(__name__)

CANCELLED_STATUS = 499  # the caller's own act; the official client does not retry it
FAILURES: dict[str, tuple[int, int | None, str | None]] = {  # status, Retry-After, parameter; others: 500
    "no_worker": (503, 30, None),
    "unavailable": (503, 30, None),
    "interrupted": (503, 1, None),  # asking again is what helps, and the official client does it by itself
    "schema_refused": (400, None, "response_format"),
}
_later: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references


@dataclass(frozen=True)
class Accepted:
    """A submitted call."""

    generation_id: UUID
    model: str  # that answers
    instead_of: str  # the busy one that was asked for; empty: none
    created: int  # Unix time, seconds
    is_stream: bool
    has_usage: bool
    may_be_retried: bool
    limit_headers: dict[str, str]
    renews_at: str | None  # when the limit that made the grant smaller renews, ISO 8601
    asked_at: float = 0.0  # monotonic time

    @property
    def headers(self) -> dict[str, str]:
        stand_in = {"x-instead-of": self.instead_of} if self.instead_of else {}
        return {"x-request-id": str(self.generation_id), **stand_in, **self.limit_headers}


async def chat_completions(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI application of this route."""
    try:
        await _serve(scope, receive, send)
    except Refusal as refusal:
        await send_openai_refusal(send, refusal)
    except ClientLeft:
        pass


async def send_openai_refusal(send: Send, refusal: Refusal) -> None:
    """A refusal in OpenAI's shape. The official client retries on 409 and on any 5xx, which must pay off."""
    status = 400 if refusal.status == 409 else refusal.status
    headers = refusal.headers()
    if refusal.retry_after is None:
        headers["x-should-retry"] = "false"
    await send_json(send, status, refusal.openai_body(), headers)


async def _serve(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_body(scope, receive)
    asked_at = monotonic()
    # One id for both, so that what the client calls its request is found in every log.
    generation_id = UUID(scope["own_request_id"]) if scope.get("own_request_id") else uuid4()
    async with AsyncExitStack() as stack:
        # Follow before the row exists: not one frame is missed, and nothing has to be read again.
        reader = await stack.enter_async_context(relay.watching(generation_id))
        call = replace(await hop(accept, scope, body, generation_id), asked_at=asked_at)
        is_new = call.generation_id == generation_id
        events = reader.events(is_new=True) if is_new else relay.follow(call.generation_id)
        await stack.enter_async_context(aclosing(events))
        answer = _stream(call, events, send) if call.is_stream else _collect(call, events, send)
        has_ended = False
        try:
            has_ended = bool(await until_disconnect(receive, answer))
        finally:
            if not has_ended:
                _abandon(call)


# -- the database hop -----------------------------------------------------------------------------


def accept(scope: Scope, body: bytes, generation_id: UUID) -> Accepted:
    """Check and submit a call. Raises Refusal."""
    principal = authenticate(scope, keys_only=True)
    try:
        return _accept(principal, scope, body, generation_id)
    except Refusal as refusal:
        refusal.limit_headers = refusal.limit_headers or limit_headers(principal)
        raise


def _accept(principal: Principal, scope: Scope, body: bytes, generation_id: UUID) -> Accepted:
    request = parse_request(parse_object(body))
    sampling = request.sampling()
    key = checked_key(header(scope, b"idempotency-key"))
    if request.conversation_id:
        generation = _continue(principal, request, request.conversation_id, sampling, key)
    else:
        model = find_model(request.model, principal.user)
        _require_worker(principal, model, sampling)
        asked = Call(principal, request.turns, model, sampling, request.asked(), key)
        generation = complete(asked, generation_id)
    return Accepted(
        generation_id=generation.pk,
        model=generation.model_id,
        instead_of=generation.instead_of,
        created=int(generation.created_at.timestamp()),
        is_stream=bool(request.stream),
        has_usage=request.has_usage,
        may_be_retried=key is not None,
        limit_headers=headers(generation.limit_states) or limit_headers(principal),
        renews_at=generation.renews_at.isoformat() if generation.renews_at else None,
    )


def _continue(
    principal: Principal, request: ChatRequest, conversation_id: UUID, sampling: Sampling, key: str | None
) -> Generation:
    """Send the last user message into a stored conversation, which has the earlier ones itself."""
    last = request.messages[-1]
    if last.role != "user":
        raise Refusal("invalid_request", "The last message must be the user's.", param="messages")
    conversation = operations.owned(principal.user, conversation_id)
    _require_worker(principal, find_model(request.model or conversation.model_version, principal.user), sampling)
    return operations.send(
        principal=principal,
        conversation_id=conversation.pk,
        content=last.content,
        model=request.model,
        sampling=sampling,
        asked=request.asked(),
        client_key=key,
    ).generation


def _require_worker(principal: Principal, model: ServedModel, sampling: Sampling) -> None:
    if sampling.json_schema and not model.follows_schemas:
        raise Refusal(
            "unsupported_parameter", f"response_format: {model.name} follows no schema.", param="response_format"
        )
    if not has_worker(model.name, settings.NO_WORKER_503_S) and stand_in(model, principal) is None:
        raise Refusal("no_worker", "No worker for this model is up; try again later.", status=503, retry_after=30)


# -- the answer -------------------------------------------------------------------------------------


async def _stream(call: Accepted, events: AsyncIterator[Event], send: Send) -> bool:
    """Write the answer as chunks; whether the generation has ended. The first chunk leaves before any token."""
    chunks = Chunks(call.generation_id, call.model, call.created, has_usage=call.has_usage, instead_of=call.instead_of)
    async with event_stream(send, ping=OPENAI_PING, headers=_raw(call.headers)) as write:
        await write(chunks.role())
        sent = 0  # characters
        try:
            async for event in events:
                if event.kind == "delta":
                    text = event.data["text"]
                    if not sent:
                        metrics.reader_first_token.labels("completions").observe(monotonic() - call.asked_at)
                    sent += len(text)
                    await write(chunks.delta(event.seq, text))
                elif event.kind == "snapshot":
                    text = event.data["text"][sent:]
                    sent += len(text)
                    await write(chunks.delta(event.seq, text))
                elif event.is_terminal:
                    await write(_end(call, chunks, event))
                    return True
            await write(_error(restarting()))
        except Refusal as refusal:
            await write(_error(refusal))
    return False


def restarting() -> Refusal:
    """This process stops, and the answer takes longer than it can wait."""
    return Refusal("restarting", "The server is being restarted; please try again.", status=503, retry_after=1)


def _end(call: Accepted, chunks: Chunks, event: Event) -> bytes:
    failure = failure_of(event)
    if failure:
        return _error(failure)
    data = chunks.finish(event.seq, event.data["finish_reason"], call.renews_at)
    if call.has_usage:
        data += chunks.usage(event.seq, event.data["usage"])
    return data + OPENAI_DONE


def _error(refusal: Refusal) -> bytes:
    return f"data: {to_json(refusal.openai_body())}\n\n".encode()


def failure_of(event: Event) -> Refusal | None:
    """What went wrong, when a terminal event does not end a whole answer."""
    if event.kind == "error":
        code = event.data["code"]
        status, retry_after, param = FAILURES.get(code, (500, None, None))
        return Refusal(code, event.data["message"], status=status, retry_after=retry_after, param=param)
    if event.data["finish_reason"] == "cancelled":
        return Refusal("cancelled", "This completion was cancelled.", status=CANCELLED_STATUS)
    return None


async def _collect(call: Accepted, events: AsyncIterator[Event], send: Send) -> bool:
    """Write the whole answer as one object; whether the generation has ended."""
    text = ""
    async for event in events:
        if event.kind == "delta":
            text += event.data["text"]
        elif event.kind == "snapshot":
            text = event.data["text"]
        elif event.is_terminal:
            failure = failure_of(event)
            if failure:
                failure.limit_headers = call.limit_headers
                await send_openai_refusal(send, failure)
            else:
                await send_json(send, 200, _completion(call, text, event), call.headers)
            return True
    await send_openai_refusal(send, restarting())
    return False


def _completion(call: Accepted, text: str, end: Event) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    finish = openai_finish(end.data["finish_reason"], call.renews_at)
    return {
        "id": str(call.generation_id),
        "object": "chat.completion",
        "created": call.created,
        "model": call.model,
        "request_id": str(call.generation_id),
        **said_instead(call.instead_of),
        "choices": [{"index": 0, "message": message, "logprobs": None, **finish}],
        "usage": openai_usage(end.data["usage"]),
    }


def _raw(named: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in named.items()]


# -- the client left ----------------------------------------------------------------------------------


def _abandon(call: Accepted) -> None:
    """Nobody reads this answer any more: cancel it, or give a retry the time to attach."""
    if not call.may_be_retried:
        run_detached(cancel_by_id, call.generation_id)
        return
    task = asyncio.create_task(_cancel_unless_followed(call.generation_id))
    _later.add(task)
    task.add_done_callback(_later.discard)


async def _cancel_unless_followed(generation_id: UUID) -> None:
    await asyncio.sleep(settings.RETRY_S)
    if not await relay.is_followed(generation_id):
        run_detached(cancel_by_id, generation_id)


def cancel_by_id(generation_id: UUID) -> None:
    """Cancel a generation, if it still exists."""
    generation = Generation.objects.filter(pk=generation_id).first()
    if generation:
        cancel(generation=generation)
