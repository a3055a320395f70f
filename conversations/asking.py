"""How an answer is asked for: the steps that send, regenerate and edit share (docs/architecture.md, "send")."""

import datetime
import enum
from dataclasses import dataclass, replace
from uuid import UUID, uuid4, uuid5

import psycopg.errors
from django.db import IntegrityError, transaction
from django.utils import timezone

from billing.errors import Refusal, not_found
from billing.models import User
from billing.operations import Principal
from conversations import notices, titles
from conversations.assembly import Assembled, assemble
from conversations.models import Conversation, Message
from inference.engine import Sampling
from inference.models import Generation, ServedModel
from inference.operations import admitted, give_back, submit
from inference.queueing import stand_in

TICK = datetime.timedelta(microseconds=1)


class Place(enum.Enum):
    """Where in the tree the new turns go."""

    NEWEST = "a new user message under the newest one"
    UNDER = "a new user message under `parent`, or a new root"
    ANSWER = "one more answer to the user message `parent`"


@dataclass(frozen=True)
class Ask:
    """What is asked for. `key`, chosen by the client, makes a repeat harmless.

    `content` and `message_id` (the new user message's id, None: any) have no meaning for Place.ANSWER. `asked`:
    output tokens at most.
    """

    principal: Principal
    conversation: Conversation
    model: ServedModel
    sampling: Sampling
    asked: int | None
    place: Place
    parent: UUID | None = None
    content: str = ""
    message_id: UUID | None = None
    key: str | None = None

    @property
    def has_new_message(self) -> bool:
        return self.place is not Place.ANSWER


@dataclass(frozen=True)
class Sent:
    """A question and its answer to be; `is_repeat` when an earlier request with the same key made them."""

    conversation: Conversation
    user_message: Message
    assistant_message: Message
    generation: Generation
    is_repeat: bool = False


def request_answer(ask: Ask) -> Sent:
    """Admit, then write the messages and the generation in one short transaction.

    Raises Refusal: context_length_exceeded, answer_running, conversation_changed, id_taken, not_found, and what
    `admitted` raises.
    """
    # One id for all repeats: they share one reservation, so a repeat never needs a place of its own.
    generation_id = uuid5(ask.conversation.pk, ask.key) if ask.key else uuid4()
    earlier = _earlier(ask)
    if earlier:
        return earlier
    leaf: UUID | None = None
    try:
        leaf = _leaf(ask)
        model, prompt = _answering(ask, leaf)
        with admitted(
            principal=ask.principal,
            model=model,
            instead_of=ask.model.name if model.pk != ask.model.pk else "",
            prompt_ids=prompt.ids,
            sampling=ask.sampling,
            asked=ask.asked,
            affinity=ask.conversation.pk,
            client_key=ask.key,
            generation_id=generation_id,
        ) as generation:
            sent = _write(ask, leaf, prompt, generation)
    except Refusal as refusal:
        earlier = _earlier(ask)  # a repeat that ran beside the first may be refused because of it
        if earlier:
            return earlier
        if refusal.status == 429:
            _require_unchanged(ask, leaf)  # of a burst into one chat, those that came too late are told so
        raise
    return sent or _lost_to_earlier(ask, generation)


def _require_unchanged(ask: Ask, leaf: UUID | None) -> None:
    """Raises Refusal (answer_running, conversation_changed): the turn could not be added even if there were room."""
    with transaction.atomic():
        locked(ask.principal.user, ask.conversation.pk)  # waits for whoever writes here now
        if _leaf(ask) != leaf:
            raise conversation_changed()


def _leaf(ask: Ask) -> UUID | None:
    """What the new turn follows; None: nothing. Raises Refusal: not_found (404), answer_running (409)."""
    messages = Message.objects.filter(conversation=ask.conversation)
    if ask.place is Place.NEWEST:
        found = messages.order_by("-created_at", "-id").values_list("pk", "generation__status").first()
    elif ask.parent is None:
        return None
    else:
        found = messages.filter(pk=ask.parent).values_list("pk", "generation__status").first()
        if found is None:
            raise not_found("message")
    if found is None:
        return None
    leaf, status = found
    answers = messages.filter(parent_id=leaf, generation__status__in=Generation.OPEN)
    if status in Generation.OPEN or (not ask.has_new_message and answers.exists()):
        raise answer_running()
    assert isinstance(leaf, UUID)
    return leaf


def _answering(ask: Ask, leaf: UUID | None) -> tuple[ServedModel, Assembled]:
    """The model that answers, and its prompt: a busy one's stand-in only where that reads the same turns."""
    prompt = _assembled(ask, ask.model, leaf)
    other = stand_in(ask.model, ask.principal)
    if other is None or (ask.asked or 0) > other.max_output_tokens:
        return ask.model, prompt
    try:
        found = _assembled(ask, other, leaf)
    except Refusal:  # it does not fit: wait for the one asked for
        return ask.model, prompt
    if found.omitted > prompt.omitted:
        return ask.model, prompt
    return other, replace(found, new_tokens=prompt.new_tokens)


def _assembled(ask: Ask, model: ServedModel, leaf: UUID | None) -> Assembled:
    return assemble(
        conversation=ask.conversation,
        model=model,
        leaf=leaf,
        content=ask.content if ask.has_new_message else None,
        asked=ask.asked,
        plan=ask.principal.user.current_plan,
    )


def answer_running() -> Refusal:
    return Refusal("answer_running", "An answer is being written here; wait for its end or stop it first.", status=409)


def conversation_changed() -> Refusal:
    return Refusal("conversation_changed", "Someone wrote here meanwhile; read that and send again.", status=409)


def id_taken() -> Refusal:
    return Refusal("id_taken", "This id was used for something else; choose a new one.", status=409, param="id")


def _earlier(ask: Ask) -> Sent | None:
    """What an earlier request with this key made. Raises Refusal (id_taken) when that was another request."""
    if ask.key is None:
        return None
    generation = Generation.objects.filter(user=ask.principal.user, client_key=ask.key).defer("prompt", "text").first()
    if generation is None:
        return None
    answer = Message.objects.filter(generation=generation).select_related("parent").first()
    question = answer.parent if answer else None
    if answer is None or question is None or answer.conversation_id != ask.conversation.pk:
        raise id_taken()
    is_same = question.content == ask.content if ask.has_new_message else question.pk == ask.parent
    if not is_same:
        raise id_taken()
    return Sent(ask.conversation, question, answer, generation, is_repeat=True)


def _lost_to_earlier(ask: Ask, generation: Generation) -> Sent:
    """The key was used while this request was under way: its result, without a second reservation."""
    assert generation.admitted_at is not None
    give_back(principal=ask.principal, generation_id=generation.pk, admitted_at=generation.admitted_at)
    earlier = _earlier(ask)
    if earlier is None:  # the message's id alone is taken, perhaps by another user
        raise id_taken()
    return earlier


# -- the transaction ------------------------------------------------------------------------------


def _write(ask: Ask, leaf: UUID | None, prompt: Assembled, generation: Generation) -> Sent | None:
    """Insert messages and generation; None when the key, or the message's id, is taken."""
    try:
        with transaction.atomic():
            conversation = locked(ask.principal.user, ask.conversation.pk)
            if ask.key and Generation.objects.filter(user=ask.principal.user, client_key=ask.key).exists():
                return None
            if _leaf(ask) != leaf:
                raise conversation_changed()
            now = max(timezone.now(), conversation.updated_at + TICK)  # messages of a chat never tie
            question, answer = _messages(ask, leaf, prompt, generation, now)
            submit(generation)
            Message.objects.bulk_create([question, answer] if ask.has_new_message else [answer])
            conversation.updated_at = now + TICK
            if not conversation.title:
                conversation.title = titles.first_words(question.content)
                conversation.title_is_provisional = True
            conversation.save(update_fields=["updated_at", "title", "title_is_provisional"])
            notices.tell_chat(conversation, "answering", generation=str(generation.pk))
            return Sent(conversation, question, answer, generation)
    except IntegrityError as error:
        if ask.key and isinstance(error.__cause__, psycopg.errors.UniqueViolation):
            return None
        raise


def locked(user: User, conversation_id: UUID) -> Conversation:
    """The user's conversation, locked for the transaction. Raises Refusal (not_found)."""
    found = user.conversations.select_for_update().filter(pk=conversation_id).first()
    if found is None:
        raise not_found("conversation")
    return found


def _messages(
    ask: Ask, leaf: UUID | None, prompt: Assembled, generation: Generation, now: datetime.datetime
) -> tuple[Message, Message]:
    """The question (the stored one, when only an answer is asked for) and the empty answer, unsaved."""
    if ask.has_new_message:
        question = Message(
            id=ask.message_id or uuid4(),
            conversation=ask.conversation,
            parent_id=leaf,
            sender_role=Message.Role.USER,
            content=ask.content,
            token_count=prompt.new_tokens,
            created_at=now,
        )
    else:
        assert leaf is not None  # Place.ANSWER has a parent
        question = ask.conversation.messages.get(pk=leaf)
    answer = Message(
        conversation=ask.conversation,
        parent=question,
        generation=generation,
        sender_role=Message.Role.ASSISTANT,
        model=generation.model_id,
        instead_of=generation.instead_of,
        omitted_turns=prompt.omitted,
        created_at=now + TICK,
    )
    return question, answer
