"""What conversations do when a generation ends."""

from typing import Any

from conversations.models import Message
from inference.models import Generation


def write_answer(sender: Any, *, generation: Generation, **_: Any) -> None:
    """Keep the answer. Runs in the finishing transaction; a message that was deleted meanwhile stays deleted.

    The conversation's row is left alone: deleting locks it before the generation, so that touching it here could
    deadlock.
    """
    Message.objects.filter(generation_id=generation.pk, finish_reason=None).update(
        content=generation.text, token_count=generation.completion_tokens, finish_reason=generation.finish_reason
    )
