"""Acts on conversations and their messages. Each looks its conversation up through the user."""

from uuid import UUID, uuid4

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from billing.errors import Refusal, not_found
from billing.models import Organization, User
from billing.operations import Principal, set_active
from billing.text import clean
from conversations import branches, notices
from conversations.asking import Ask, Place, Sent, id_taken, locked, request_answer
from conversations.models import Conversation, Message
from inference.engine import Sampling
from inference.models import Generation, ServedModel
from inference.operations import cancel, find_model

__all__ = [
    "Sent",
    "cancel_running",
    "delete_account",
    "delete_conversation",
    "delete_message",
    "edit",
    "owned",
    "regenerate",
    "send",
    "start",
    "update",
]

TITLE_LENGTH = 255
SYSTEM_PROMPT_LENGTH = 100_000  # characters; the context decides, when a message is sent
DEFAULT_SAMPLING = Sampling()


def start(
    *,
    user: User,
    title: str = "",
    model: str | None = None,
    system_prompt: str | None = None,
    conversation_id: UUID | None = None,
) -> Conversation:
    """A new, empty conversation; with a client-chosen id a repeat returns the first one.

    `model` None: the default one; `system_prompt` None: the site's. Raises Refusal (model_not_found, invalid_text,
    text_too_long, id_taken).
    """
    conversation = Conversation(
        id=conversation_id or uuid4(),
        user=user,
        title=clean(title, "title", longest=TITLE_LENGTH).strip(),
        model_version=_model(user, model).name,
        system_prompt=_system_prompt(settings.DEFAULT_SYSTEM_PROMPT if system_prompt is None else system_prompt),
    )
    try:
        with transaction.atomic():
            conversation.save(force_insert=True)
    except IntegrityError:
        found = user.conversations.filter(pk=conversation.pk).first()
        if found is None:
            raise id_taken() from None
        return found
    notices.tell_chat(conversation, "created")
    return conversation


def send(
    *,
    principal: Principal,
    conversation_id: UUID,
    content: str,
    parent: UUID | None = None,
    model: str | None = None,
    sampling: Sampling = DEFAULT_SAMPLING,
    asked: int | None = None,
    message_id: UUID | None = None,
    client_key: str | None = None,
) -> Sent:
    """A user message under `parent` (None: the newest message) and the generation of its answer.

    `model` None: the conversation's; `asked`: output tokens at most. A client-chosen `message_id`, or an
    Idempotency-Key as `client_key`, makes a repeat harmless. Raises Refusal: not_found, model_not_found,
    invalid_text, empty_message, context_length_exceeded (400), answer_running, conversation_changed, id_taken (409),
    and what admission raises (429, 503).
    """
    conversation = owned(principal.user, conversation_id)
    return request_answer(
        Ask(
            principal=principal,
            conversation=conversation,
            model=_model(principal.user, model or conversation.model_version),
            sampling=sampling,
            asked=asked,
            place=Place.UNDER if parent else Place.NEWEST,
            parent=parent,
            content=_content(content),
            message_id=message_id,
            key=client_key or _key(message_id),
        )
    )


def edit(
    *,
    principal: Principal,
    conversation_id: UUID,
    message_id: UUID,
    content: str,
    model: str | None = None,
    sampling: Sampling = DEFAULT_SAMPLING,
    asked: int | None = None,
    new_id: UUID | None = None,
) -> Sent:
    """Another version of a user message: a sibling, with an answer of its own. The first one stays.

    `new_id` is the new message's, as `message_id` is in `send`. Raises what `send` raises, and not_a_question.
    """
    conversation = owned(principal.user, conversation_id)
    message = _message(conversation, message_id)
    if message.sender_role != Message.Role.USER:
        raise not_a_question("Only your own messages can be edited.")
    return request_answer(
        Ask(
            principal=principal,
            conversation=conversation,
            model=_model(principal.user, model or conversation.model_version),
            sampling=sampling,
            asked=asked,
            place=Place.UNDER,
            parent=message.parent_id,
            content=_content(content),
            message_id=new_id,
            key=_key(new_id),
        )
    )


def regenerate(
    *,
    principal: Principal,
    conversation_id: UUID,
    message_id: UUID,
    model: str | None = None,
    sampling: Sampling = DEFAULT_SAMPLING,
    asked: int | None = None,
    client_key: UUID | None = None,
) -> Sent:
    """One more answer, beside the others, to a user message; `message_id` is that message or one of its answers.

    Raises what `send` raises; answer_running while another answer to it is being written.
    """
    conversation = owned(principal.user, conversation_id)
    message = _message(conversation, message_id)
    question_id = message.pk if message.sender_role == Message.Role.USER else message.parent_id
    if question_id is None:
        raise not_a_question("There is no question to this message.")
    return request_answer(
        Ask(
            principal=principal,
            conversation=conversation,
            model=_model(principal.user, model or conversation.model_version),
            sampling=sampling,
            asked=asked,
            place=Place.ANSWER,
            parent=question_id,
            key=_key(client_key),
        )
    )


def update(
    *,
    user: User,
    conversation_id: UUID,
    title: str | None = None,
    is_archived: bool | None = None,
    model: str | None = None,
    system_prompt: str | None = None,
) -> Conversation:
    """Change what is not None; `updated_at` stays, for it orders chats by their last message.

    Raises Refusal (not_found, model_not_found, invalid_text, text_too_long).
    """
    conversation = owned(user, conversation_id)
    if title is not None:
        conversation.title = clean(title, "title", longest=TITLE_LENGTH).strip()
        conversation.title_is_provisional = False
    if is_archived is not None:
        conversation.is_archived = is_archived
    if model is not None:
        conversation.model_version = _model(user, model, "model_version").name
    if system_prompt is not None:
        conversation.system_prompt = _system_prompt(system_prompt)
    fields = {
        "title": title,
        "title_is_provisional": title,
        "is_archived": is_archived,
        "model_version": model,
        "system_prompt": system_prompt,
    }
    changed = [name for name, value in fields.items() if value is not None]
    if changed:
        user.conversations.filter(pk=conversation.pk).update(**{name: getattr(conversation, name) for name in changed})
        notices.tell_chat(conversation, "updated" if title is None else "titled")
    return conversation


def cancel_running(*, user: User, conversation_id: UUID) -> list[Generation]:
    """Stop every answer that is being written in a conversation; the ones it found, refreshed. Idempotent."""
    conversation = owned(user, conversation_id)
    return [cancel(generation=generation) for generation in _running(conversation.messages.all())]


def delete_conversation(*, user: User, conversation_id: UUID) -> None:
    """Stop what runs in it, which is charged for what it produced, and delete it. Raises Refusal (not_found)."""
    with transaction.atomic():
        conversation = locked(user, conversation_id)
        # Before the messages go: a finishing generation locks its row first and then its message, as we do.
        for generation in _running(conversation.messages.all()):
            cancel(generation=generation)
        notices.tell_chat(conversation, "deleted")
        conversation.delete()


def delete_message(*, user: User, conversation_id: UUID, message_id: UUID) -> None:
    """As delete_conversation, for a message and everything under it."""
    with transaction.atomic():
        conversation = locked(user, conversation_id)
        ids = branches.below(conversation.pk, message_id)
        if not ids:
            raise not_found("message")
        messages = Message.objects.filter(pk__in=ids)
        for generation in _running(messages):
            cancel(generation=generation)
        messages.delete()
        notices.tell_chat(conversation, "updated")


def delete_account(*, user: User) -> None:
    """Stop what runs, then delete the account with its chats and API keys; what was used stays in the ledger.

    The organization goes with its last member.
    """
    set_active(user=user, is_active=False)  # nothing new begins from here on
    # Before any conversation is locked: a title's end locks its generation first and then the conversation.
    for generation in Generation.objects.filter(user=user, status__in=Generation.OPEN).defer("prompt", "text"):
        cancel(generation=generation)
    with transaction.atomic():
        chats = [chat.pk for chat in user.conversations.select_for_update().order_by("pk").only("pk")]
        for generation in _running(Message.objects.filter(conversation__in=chats)):
            cancel(generation=generation)
        organization_id = user.organization_id
        user.delete()
        Organization.objects.filter(pk=organization_id, members=None).delete()


def owned(user: User, conversation_id: UUID) -> Conversation:
    """The user's conversation. Raises Refusal (not_found) for another's just as for none."""
    found = user.conversations.filter(pk=conversation_id).first()
    if found is None:
        raise not_found("conversation")
    return found


def not_a_question(message: str) -> Refusal:
    return Refusal("not_a_question", message, param="message_id")


def _message(conversation: Conversation, message_id: UUID) -> Message:
    found = conversation.messages.filter(pk=message_id).defer("content").first()
    if found is None:
        raise not_found("message")
    return found


def _running(messages: QuerySet[Message]) -> list[Generation]:
    ids = messages.filter(generation__status__in=Generation.OPEN).order_by().values("generation_id")
    return list(Generation.objects.filter(pk__in=ids).defer("prompt", "text").order_by("pk"))


def _key(chosen: UUID | None) -> str | None:
    return str(chosen) if chosen else None


def _model(user: User, name: str | None, param: str = "model") -> ServedModel:
    return find_model(name if name is None else clean(name, param), user)


def _content(text: str) -> str:
    if not text.strip():
        raise Refusal("empty_message", "content has no text.", param="content")
    return clean(text, "content")


def _system_prompt(text: str) -> str:
    return clean(text, "system_prompt", longest=SYSTEM_PROMPT_LENGTH)
