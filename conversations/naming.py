"""Titles that a model gives, in the background: asked for after the first exchange, kept if nobody was faster."""

import logging
from datetime import timedelta
from uuid import UUID, uuid5

from celery import current_app
from django.db.models import F
from django.db.models.functions import Now
from kombu.exceptions import OperationalError as BrokerError

from billing.errors import Refusal
from conversations import notices, titles
from conversations.models import Conversation, Message
from inference.endings import end_waiting
from inference.engine import Sampling
from inference.models import Generation
from inference.operations import find_model, submit_own
from inference.templating import ModelFilesMissing, TemplateRefused, load_template

log = logging.getLogger(__name__)

TITLE = "title"  # the purpose of such generations
ASK = "conversations.ask_for_title"
PATIENCE = timedelta(seconds=60)
GIVE_UP = timedelta(minutes=10)  # a chat that old keeps its first words
SAMPLING = Sampling(temperature=0.2)


def title_id(conversation_id: UUID) -> UUID:
    """The id of a conversation's title generation: there is one at most, however often it is asked for."""
    return uuid5(conversation_id, TITLE)


def call_for_title(conversation_id: UUID) -> None:
    """Let the side worker ask for a title. A hint: settle_titles finds what was lost."""
    try:
        current_app.send_task(ASK, args=[str(conversation_id)], retry=False, ignore_result=True)
    except (BrokerError, OSError, TimeoutError) as error:
        log.warning("title of %s not asked for: %r", conversation_id, error)


def ask_for_title(conversation_id: UUID) -> bool:
    """Queue the title of a conversation that has a provisional one and its first answer; whether it is queued now."""
    conversation = (
        Conversation.objects.select_related("user").filter(pk=conversation_id, title_is_provisional=True).first()
    )
    exchange = _first_exchange(conversation_id)
    if conversation is None or exchange is None:
        return False
    try:
        model = find_model(conversation.model_version, conversation.user)
        prompt = load_template(model.name).encode(titles.turns(*exchange))
    except (Refusal, ModelFilesMissing, TemplateRefused) as error:
        log.info("no title for %s: %s", conversation_id, error)
        _settle(conversation_id)
        return False
    return submit_own(
        generation_id=title_id(conversation_id),
        user=conversation.user,
        model=model,
        prompt_ids=prompt,
        sampling=SAMPLING,
        grant=titles.OUTPUT_TOKENS,
        purpose=TITLE,
        affinity=conversation_id,
    )


def _first_exchange(conversation_id: UUID) -> tuple[str, str] | None:
    """The first question that has an answer with text, and that answer."""
    answers = Message.objects.filter(
        conversation_id=conversation_id, sender_role=Message.Role.ASSISTANT, finish_reason__isnull=False
    )
    return answers.exclude(content="").values_list("parent__content", "content").order_by("created_at", "id").first()


def keep_title(generation: Generation) -> None:
    """A title generation has ended: its title, if it is one, replaces the provisional one; else that one stays.

    Runs in the finishing transaction. Whoever renamed the chat meanwhile was faster.
    """
    is_whole = generation.status == Generation.Status.FINISHED
    title = titles.clean_title(generation.text, is_cut=generation.finish_reason != "stop") if is_whole else ""
    assert generation.affinity is not None  # ask_for_title gives one
    if _settle(generation.affinity, **({"title": title} if title else {})) and title:
        notices.tell_chat(Conversation.objects.get(pk=generation.affinity), "titled")


def _settle(conversation_id: UUID, **title: str) -> bool:
    rows = Conversation.objects.filter(pk=conversation_id, title_is_provisional=True)
    return bool(rows.update(title_is_provisional=False, **title))


def settle_titles(*, limit: int = 100) -> int:
    """Once in a while: titles that no worker took in time are given up, and those never asked for are asked for.

    Returns how many chats it looked after.
    """
    late = Generation.objects.filter(purpose=TITLE, status=Generation.Status.WAITING, created_at__lt=Now() - PATIENCE)
    for generation in late[:limit]:
        end_waiting(generation, status=Generation.Status.CANCELLED, finish_reason="cancelled")
    forgotten = Conversation.objects.filter(title_is_provisional=True, updated_at__lt=Now() - PATIENCE)
    chats = list(forgotten.annotate(age=Now() - F("updated_at")).order_by("updated_at")[:limit])
    for chat in chats:
        _look_after(chat.pk, is_old=chat.age > GIVE_UP)
    return len(chats)


def _look_after(conversation_id: UUID, *, is_old: bool) -> None:
    if Message.objects.filter(conversation_id=conversation_id, generation__status__in=Generation.OPEN).exists():
        return
    title = Generation.objects.filter(pk=title_id(conversation_id)).first()
    if title is None and not is_old:
        ask_for_title(conversation_id)
    elif title is None or not title.is_open:
        _settle(conversation_id)
