"""WebSocket /ws/conversations/{id}: the native stream's events as JSON text frames, and frames from the client.

From the client: {"type": "send", "content": …, as POST …/messages}, {"type": "regenerate", "message": id, …},
{"type": "edit", "message": id, "content": …}, {"type": "cancel", "generation"?}, {"type": "resume",
"generation"?, "last_seq_id"?}. An act that began a generation is answered by {"event": "accepted", …}, then its
events follow. {"event": "error"} without a `generation` is the answer to a frame that was refused.

On connecting, the newest generation is followed if it is still open, or in any case if the query names a position
(?generation=…&last_seq_id=42). A generation that the socket already follows is not followed again; one that is
begun elsewhere (another tab) is followed without being asked for.

Beside these, {"event": "chats", "conversation", "change", "title", "generation"?} tells what became of any of the
person's chats (conversations.notices): hints, each at most once. /ws/user carries nothing but these. Close codes: 1012
the process stops, come again at once; 4401 logged out.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from channels.exceptions import StopConsumer
from django.conf import settings

from billing.authentication import authenticate
from billing.bodies import Body, parse
from billing.errors import Refusal, not_found
from billing.operations import Principal
from conversations import operations
from conversations.frames import native_json, to_json
from conversations.http import Receive, Scope, Send, hop, parse_object
from conversations.operations import Sent
from conversations.schemas import EditBody, Id, MessageOut, RegenerateBody, SendBody
from conversations.sockets import UserConsumer, refuse
from conversations.streams import Found, Position, error_event, find_stream, following, position_of
from inference.models import Generation
from inference.operations import cancel
from inference.protocol import News

MAX_FOLLOWED = 8  # generations of one conversation that one socket follows at once


class EditFrame(EditBody):
    message: Id


class RegenerateFrame(RegenerateBody):
    message: Id


class CancelFrame(Body):
    """None: every answer that is being written here."""

    generation: Id | None = None


class ResumeFrame(Body):
    """`generation` None: the newest one."""

    generation: Id | None = None
    last_seq_id: int | None = None


@dataclass(frozen=True)
class Begun:
    """A frame began a generation (or, repeated, had begun it)."""

    sent: Sent

    def to_json(self) -> dict[str, Any]:
        question, answer = self.sent.user_message, self.sent.assistant_message
        return {
            "event": "accepted",
            "generation": str(self.sent.generation.pk),
            "user_message": MessageOut.of(question, None).model_dump(mode="json"),
            "assistant_message": MessageOut.of(answer, self.sent.generation).model_dump(mode="json"),
        }


class ConversationConsumer(UserConsumer):
    """One socket of one conversation."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.following: dict[UUID, asyncio.Task[None]] = {}
        self.followed: deque[UUID] = deque(maxlen=100)
        self.answering = asyncio.Lock()  # an act is answered before anything is said of what it began
        await super().__call__(scope, receive, send)

    async def websocket_connect(self, message: dict[str, Any]) -> None:
        try:
            user, found = await hop(_open_stream, self.scope)
        except Refusal as refusal:
            await refuse(self.scope, self.base_send, refusal)
            raise StopConsumer from None
        await self.open(user)
        if found:
            self._follow(found)

    async def pass_on(self, news: News) -> None:
        async with self.answering:
            await super().pass_on(news)
            if news.data["change"] != "answering" or news.data["conversation"] != str(self.scope["conversation_id"]):
                return
            generation = UUID(news.data["generation"])
            if generation not in self.followed:
                self._follow(Found(generation, 0))

    async def websocket_receive(self, message: dict[str, Any]) -> None:
        async with self.answering:
            await self._receive(message.get("text") or "")

    async def _receive(self, text: str) -> None:
        try:
            if not text or len(text) > settings.MAX_BODY_BYTES:
                raise Refusal("invalid_frame", f"A frame is text of at most {settings.MAX_BODY_BYTES} characters.")
            frame = parse_object(text)
            found = await hop(_act, self.scope, frame)
        except Refusal as refusal:
            await self.send(text_data=to_json({"event": "error", **refusal.body()["error"]}))
        else:
            await self._answer(found)

    # -- following ------------------------------------------------------------------------------

    async def _answer(self, found: Found | Begun | None) -> None:
        if isinstance(found, Begun):
            await self.send(text_data=to_json(found.to_json()))
            found = Found(found.sent.generation.pk, 0)
        if found:
            self._follow(found)

    def _follow(self, found: Found) -> None:
        """Follow in a task of its own; of too many the oldest gives way.

        Two streams of one generation, from different positions, could not be told apart by the client.
        """
        if found.generation in self.following:
            return
        if len(self.following) >= MAX_FOLLOWED:
            self.following.pop(next(iter(self.following))).cancel()
        task = self.start(self._send_events(found))
        self.following[found.generation] = task
        self.followed.append(found.generation)
        task.add_done_callback(lambda ended: self._forget(found.generation, ended))

    def _forget(self, generation: UUID, task: "asyncio.Task[None]") -> None:
        if self.following.get(generation) is task:
            del self.following[generation]

    async def _send_events(self, found: Found) -> None:
        seq = found.after
        try:
            async with following(found) as events:
                async for event in events:
                    seq = event.seq
                    if event.is_terminal:  # whoever has the end may ask for it again at once
                        self.following.pop(found.generation, None)
                    await self.send(text_data=native_json(event))
        except Refusal as refusal:
            await self.send(text_data=native_json(error_event(refusal, found.generation, seq)))


# -- the database hops ------------------------------------------------------------------------------


def _open_stream(scope: Scope) -> tuple[UUID, Found | None]:
    """Who connects, and what they see first. Raises Refusal (401, 403, 404)."""
    principal = authenticate(scope)
    position = position_of(scope)
    found = find_stream(operations.owned(principal.user, scope["conversation_id"]), position)
    if found is not None and position == Position():
        is_open = Generation.objects.filter(pk=found.generation, status__in=Generation.OPEN).exists()
        found = found if is_open else None
    return principal.user.pk, found


def _act(scope: Scope, frame: dict[str, Any]) -> Found | Begun | None:
    """Do what a frame asks for. The caller is checked each time: a key may be revoked, a session ended."""
    kind = frame.pop("type", None)
    act = ACTS.get(kind) if isinstance(kind, str) else None
    if act is None:
        raise Refusal("invalid_frame", f"The type is one of {', '.join(ACTS)}.", param="type")
    return act(authenticate(scope), scope["conversation_id"], frame)


def _send(principal: Principal, conversation_id: UUID, frame: dict[str, Any]) -> Begun:
    arguments = parse(SendBody, frame).arguments()
    return Begun(operations.send(principal=principal, conversation_id=conversation_id, **arguments))


def _edit(principal: Principal, conversation_id: UUID, frame: dict[str, Any]) -> Begun:
    body = parse(EditFrame, frame)
    return Begun(
        operations.edit(
            principal=principal,
            conversation_id=conversation_id,
            message_id=body.message,
            content=body.content,
            model=body.model,
            sampling=body.sampling(),
            asked=body.asked(),
            new_id=body.id,
        )
    )


def _regenerate(principal: Principal, conversation_id: UUID, frame: dict[str, Any]) -> Begun:
    body = parse(RegenerateFrame, frame)
    return Begun(
        operations.regenerate(
            principal=principal,
            conversation_id=conversation_id,
            message_id=body.message,
            model=body.model,
            sampling=body.sampling(),
            asked=body.asked(),
            client_key=body.id,
        )
    )


def _cancel(principal: Principal, conversation_id: UUID, frame: dict[str, Any]) -> None:
    wanted = parse(CancelFrame, frame).generation
    if wanted is None:
        operations.cancel_running(user=principal.user, conversation_id=conversation_id)
        return
    conversation = operations.owned(principal.user, conversation_id)
    generation = Generation.objects.filter(pk=wanted, message__conversation=conversation).first()
    if generation is None:
        raise not_found("generation")
    cancel(generation=generation)


def _resume(principal: Principal, conversation_id: UUID, frame: dict[str, Any]) -> Found:
    body = parse(ResumeFrame, frame)
    conversation = operations.owned(principal.user, conversation_id)
    found = find_stream(conversation, Position(body.generation, max(0, body.last_seq_id or 0)))
    if found is None:
        raise Refusal("nothing_to_stream", "Nothing has been asked here yet.", status=404)
    return found


ACTS: dict[str, Callable[[Principal, UUID, dict[str, Any]], Found | Begun | None]] = {
    "send": _send,
    "edit": _edit,
    "regenerate": _regenerate,
    "cancel": _cancel,
    "resume": _resume,
}
