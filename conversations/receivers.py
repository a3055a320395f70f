"""What conversations do when a generation ends."""

from typing import Any

from django.db import transaction

from conversations import naming, notices
from conversations.models import Conversation, Message
from inference.models import Generation


def write_answer(sender: Any, *, generation: Generation, **_: Any) -> None:
    """Keep the answer. Runs in the finishing transaction; a message that was deleted meanwhile stays deleted.

    The conversation's row is left alone: deleting locks it before the generation, so that touching it here could
    deadlock.
    """
    if generation.purpose == naming.TITLE:
        naming.keep_title(generation)
        return
    kept = Message.objects.filter(generation_id=generation.pk, finish_reason=None).update(
        content=generation.text, token_count=generation.completion_tokens, finish_reason=generation.finish_reason
    )
    if kept:
        _tell(generation)


def _tell(generation: Generation) -> None:
    conversation = Conversation.objects.defer("system_prompt").filter(messages__generation_id=generation.pk).first()
    if conversation is None:
        return
    notices.tell_chat(conversation, "answered", generation=str(generation.pk))
    if conversation.title_is_provisional and generation.text:
        transaction.on_commit(lambda: naming.call_for_title(conversation.pk))
