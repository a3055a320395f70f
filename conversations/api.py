"""The native API: conversations, messages, models. Views parse, call one operation, render."""

import datetime
from collections.abc import Sequence
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.errors import Refusal
from billing.text import clean
from billing.usage import costs_of
from billing.views import ApiView, rendered
from conversations import operations
from conversations.choices import models_with_state
from conversations.notices import note_reading
from conversations.pages import Cursor, after, page_size
from conversations.schemas import (
    CancelledOut,
    ConversationChange,
    ConversationOut,
    ConversationsOut,
    ConversationSummary,
    EditBody,
    GenerationOut,
    MessageOut,
    MessagesOut,
    ModelOut,
    ModelsOut,
    NewConversation,
    RegenerateBody,
    SendBody,
    SentOut,
)

CURSOR = OpenApiParameter("cursor", str, description="`next_cursor` of the page before.")
LIMIT = OpenApiParameter("limit", int, description="Items on a page.")
SEARCH = OpenApiParameter("q", str, description="Part of the title.")
ARCHIVED = OpenApiParameter("archived", bool, description="The archived ones instead of the others.")


class ConversationsView(ApiView):
    @extend_schema(
        operation_id="conversations_list", parameters=[SEARCH, ARCHIVED, CURSOR, LIMIT], responses=ConversationsOut
    )
    def get(self, request: Request) -> Response:
        """Your conversations, the one with the newest message first."""
        query = request.query_params
        size = page_size(query.get("limit"), default=50, most=200)
        rows = self.user.conversations.filter(is_archived=_flag(query.get("archived"), "archived")).defer(
            "system_prompt"
        )
        if query.get("q"):
            rows = rows.filter(title__icontains=clean(query["q"], "q", longest=operations.TITLE_LENGTH))
        found = list(after(rows, "updated_at", _cursor(request), newest_first=True)[: size + 1])
        page = found[:size]
        return rendered(
            ConversationsOut(
                items=[ConversationSummary.model_validate(row) for row in page],
                next_cursor=_next(found, size, page[-1].updated_at, page[-1].pk) if page else None,
            )
        )

    @extend_schema(request=NewConversation, responses={201: ConversationOut})
    def post(self, request: Request) -> Response:
        """A new, empty conversation."""
        body = self.body(NewConversation)
        conversation = operations.start(
            user=self.user,
            title=body.title,
            model=body.model,
            system_prompt=body.system_prompt,
            conversation_id=body.id,
        )
        return rendered(ConversationOut.model_validate(conversation), status=201)


class ConversationView(ApiView):
    @extend_schema(responses=ConversationOut)
    def get(self, request: Request, conversation_id: UUID) -> Response:
        """One conversation; its messages have a page of their own."""
        return rendered(ConversationOut.model_validate(operations.owned(self.user, conversation_id)))

    @extend_schema(request=ConversationChange, responses=ConversationOut)
    def patch(self, request: Request, conversation_id: UUID) -> Response:
        """Rename, archive, change model or system prompt."""
        body = self.body(ConversationChange)
        conversation = operations.update(
            user=self.user,
            conversation_id=conversation_id,
            title=body.title,
            is_archived=body.is_archived,
            model=body.model_version,
            system_prompt=body.system_prompt,
        )
        return rendered(ConversationOut.model_validate(conversation))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, conversation_id: UUID) -> Response:
        """Delete it with its messages; what is being written is stopped."""
        operations.delete_conversation(user=self.user, conversation_id=conversation_id)
        return Response(status=204)


class MessagesView(ApiView):
    @extend_schema(operation_id="messages_list", parameters=[CURSOR, LIMIT], responses=MessagesOut)
    def get(self, request: Request, conversation_id: UUID) -> Response:
        """All messages, oldest first; `parent` makes them a tree."""
        conversation = operations.owned(self.user, conversation_id)
        size = page_size(request.query_params.get("limit"), default=200, most=500)
        rows = conversation.messages.select_related("generation").defer("generation__prompt", "generation__text")
        found = list(after(rows, "created_at", _cursor(request), newest_first=False)[: size + 1])
        page = found[:size]
        costs = costs_of(row.generation_id for row in page)
        note_reading(page)
        return rendered(
            MessagesOut(
                items=[MessageOut.of(row, row.generation, costs.get(row.generation_id)) for row in page],
                next_cursor=_next(found, size, page[-1].created_at, page[-1].pk) if page else None,
            )
        )

    @extend_schema(request=SendBody, responses={202: SentOut})
    def post(self, request: Request, conversation_id: UUID) -> Response:
        """Send a message. The answer follows in the conversation's stream."""
        arguments = self.body(SendBody).arguments()
        sent = operations.send(principal=self.principal, conversation_id=conversation_id, **arguments)
        return rendered(SentOut.of(sent), status=202)


class MessageView(ApiView):
    @extend_schema(responses={204: None})
    def delete(self, request: Request, conversation_id: UUID, message_id: UUID) -> Response:
        """Delete a message and everything under it; what is being written there is stopped."""
        operations.delete_message(user=self.user, conversation_id=conversation_id, message_id=message_id)
        return Response(status=204)


class RegenerateView(ApiView):
    @extend_schema(request=RegenerateBody, responses={202: SentOut})
    def post(self, request: Request, conversation_id: UUID, message_id: UUID) -> Response:
        """One more answer to a user message; name that message, or one of its answers."""
        body = self.body(RegenerateBody)
        sent = operations.regenerate(
            principal=self.principal,
            conversation_id=conversation_id,
            message_id=message_id,
            model=body.model,
            sampling=body.sampling(),
            asked=body.asked(),
            client_key=body.id,
        )
        return rendered(SentOut.of(sent), status=202)


class EditView(ApiView):
    @extend_schema(request=EditBody, responses={202: SentOut})
    def post(self, request: Request, conversation_id: UUID, message_id: UUID) -> Response:
        """Another version of a user message, beside it, with an answer of its own."""
        body = self.body(EditBody)
        sent = operations.edit(
            principal=self.principal,
            conversation_id=conversation_id,
            message_id=message_id,
            content=body.content,
            model=body.model,
            sampling=body.sampling(),
            asked=body.asked(),
            new_id=body.id,
        )
        return rendered(SentOut.of(sent), status=202)


class CancelView(ApiView):
    @extend_schema(request=None, responses=CancelledOut)
    def post(self, request: Request, conversation_id: UUID) -> Response:
        """Stop what is being written. Doing it twice is harmless."""
        stopped = operations.cancel_running(user=self.user, conversation_id=conversation_id)
        return rendered(CancelledOut(items=[GenerationOut.of(generation) for generation in stopped]))


class ModelsView(ApiView):
    @extend_schema(responses=ModelsOut)
    def get(self, request: Request) -> Response:
        """The models that your plan includes."""
        models = models_with_state(self.user)
        return rendered(ModelsOut(items=[ModelOut.model_validate(model) for model in models]))


def _cursor(request: Request) -> Cursor | None:
    text = request.query_params.get("cursor")
    return Cursor.from_text(text) if text else None


def _next(found: Sequence[object], size: int, time: datetime.datetime, row: UUID) -> str | None:
    return Cursor(time, row).to_text() if len(found) > size else None


def _flag(text: str | None, param: str) -> bool:
    if text not in (None, "", "true", "false", "1", "0"):
        raise Refusal("invalid_request", f"{param} must be true or false.", param=param)
    return text in ("true", "1")
