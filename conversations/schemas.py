"""What the native API takes and gives, as pydantic models: checked on the way in, documented both ways."""

import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Strict

from billing.bodies import Body
from billing.usage import costs_of
from conversations.models import Message
from conversations.operations import Sent
from conversations.sampling import SamplingFields
from inference.endings import usage_of
from inference.models import Generation

Id = Annotated[UUID, Strict(False)]  # JSON has no UUIDs


class NewConversation(Body):
    """`id`: chosen by the client, it makes a repeat harmless."""

    id: Id | None = None
    title: str = ""
    model: str | None = None
    system_prompt: str | None = None


class ConversationChange(Body):
    """What is left out, or null, stays as it is."""

    title: str | None = None
    is_archived: bool | None = None
    model_version: str | None = None
    system_prompt: str | None = None


class RegenerateBody(SamplingFields):
    """`id`: chosen by the client, it makes a repeat harmless."""

    id: Id | None = None
    model: str | None = None


class EditBody(RegenerateBody):
    content: str


class SendBody(EditBody):
    """`parent`: the message that this one follows; none: the newest one."""

    parent: Id | None = None

    def arguments(self) -> dict[str, Any]:
        """For operations.send. Raises Refusal (invalid_text)."""
        return {
            "content": self.content,
            "parent": self.parent,
            "model": self.model,
            "sampling": self.sampling(),
            "asked": self.asked(),
            "message_id": self.id,
        }


class ConversationSummary(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: UUID
    title: str
    model_version: str
    is_archived: bool
    created_at: datetime.datetime
    updated_at: datetime.datetime


class ConversationOut(ConversationSummary):
    system_prompt: str


class ConversationsOut(BaseModel):
    """`next_cursor`: for the next page; null on the last one."""

    items: list[ConversationSummary]
    next_cursor: str | None


class MessageUsage(BaseModel):
    """Tokens of an answer, cached ones as part of the prompt's. `cost_micro`: in micro-units of the operator's
    currency."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    total_tokens: int
    cost_micro: int | None

    @classmethod
    def of(cls, generation: Generation, cost_micro: int | None) -> "MessageUsage":
        usage = usage_of(generation)
        return cls(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
            cost_micro=cost_micro,
        )


class MessageOut(BaseModel):
    """`status` is WAITING or RUNNING while an answer is being written; `finish_reason` and `usage` are null until it
    has ended. `renews_at`: when the limit that cut it short renews.

    `omitted_turns`: older turns that did not fit the model's context for this answer. `instead_of`: the model that was
    asked for, where `model` stood in for it.
    """

    id: UUID
    parent: UUID | None
    sender_role: str
    content: str
    token_count: int
    finish_reason: str | None
    model: str
    instead_of: str | None
    omitted_turns: int
    generation: UUID | None
    status: str | None
    usage: MessageUsage | None
    renews_at: datetime.datetime | None
    created_at: datetime.datetime

    @classmethod
    def of(cls, message: Message, generation: Generation | None, cost_micro: int | None = None) -> "MessageOut":
        """The generation's row is the truth about how an answer ended."""
        is_answer = message.sender_role == Message.Role.ASSISTANT
        is_open = generation is not None and generation.is_open
        end = generation.finish_reason if generation else None
        ended = None if is_open else message.finish_reason or end or ("error" if is_answer else None)
        return cls(
            id=message.pk,
            parent=message.parent_id,
            sender_role=message.sender_role,
            content=message.content,
            token_count=message.token_count,
            finish_reason=ended,
            model=message.model,
            instead_of=message.instead_of or None,
            omitted_turns=message.omitted_turns,
            generation=message.generation_id,
            status=generation.status if generation and is_open else None,
            usage=MessageUsage.of(generation, cost_micro) if generation and not is_open else None,
            renews_at=generation.renews_at if generation and ended == "limit_reached" else None,
            created_at=message.created_at,
        )


class MessagesOut(BaseModel):
    """Oldest first; `next_cursor`: for the next page; null on the last one."""

    items: list[MessageOut]
    next_cursor: str | None


class GenerationOut(BaseModel):
    """`max_tokens`: output tokens it may produce. `instead_of`: the busy model that `model` stands in for."""

    id: UUID
    status: str
    model: str
    instead_of: str | None
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    max_tokens: int

    @classmethod
    def of(cls, generation: Generation) -> "GenerationOut":
        return cls(
            id=generation.pk,
            status=generation.status,
            model=generation.model_id,
            instead_of=generation.instead_of or None,
            finish_reason=generation.finish_reason,
            prompt_tokens=generation.prompt_tokens,
            completion_tokens=generation.completion_tokens,
            max_tokens=generation.grant,
        )


class SentOut(BaseModel):
    """A question, its answer to be, and the generation whose stream to follow."""

    user_message: MessageOut
    assistant_message: MessageOut
    generation: GenerationOut

    @classmethod
    def of(cls, sent: Sent) -> "SentOut":
        cost = costs_of([sent.generation.pk]).get(sent.generation.pk) if not sent.generation.is_open else None
        return cls(
            user_message=MessageOut.of(sent.user_message, None),
            assistant_message=MessageOut.of(sent.assistant_message, sent.generation, cost),
            generation=GenerationOut.of(sent.generation),
        )


class CancelledOut(BaseModel):
    """The generations that were stopped; empty when nothing ran."""

    items: list[GenerationOut]


class ModelOut(BaseModel):
    """`is_ready`: a worker can serve it now."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    context_length: int
    max_output_tokens: int
    is_default: bool
    is_ready: bool


class ModelsOut(BaseModel):
    items: list[ModelOut]


STREAM = {
    "operationId": "conversations_stream",
    "summary": "Follow an answer (Server-Sent Events)",
    "description": "Events (see docs/api.md): queued, started, status, delta, snapshot, and at the end done or error. "
    "To resume, say what you have: the id of the last event in Last-Event-ID, or generation and last_seq_id.",
    "tags": ["conversations"],
    "parameters": [
        {"name": "conversation_id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}},
        {"name": "generation", "in": "query", "schema": {"type": "string", "format": "uuid"},
         "description": "Default: the newest one."},
        {"name": "last_seq_id", "in": "query", "schema": {"type": "integer", "minimum": 0, "default": 0},
         "description": "The last `seq` that you have."},
        {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"},
         "description": "`<generation>:<seq>`; goes before the query."},
    ],
    "security": [{"apiKey": []}, {"cookieAuth": []}],
    "responses": {
        "200": {"description": "The events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
        "204": {"description": "This conversation has no answer yet."},
        "404": {"description": "There is no such conversation or generation of yours."},
    },
}  # fmt: skip


def add_stream(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """drf-spectacular's hook: the stream is not Django's view, so it does not find it."""
    result["paths"]["/api/v1/conversations/{conversation_id}/stream"] = {"get": STREAM}
    return result
