"""What the other pages of a person are told about their chats: hints, sent after commit, lost without harm."""

from collections.abc import Sequence
from typing import Any, Literal

from django.db import transaction

from conversations.models import Conversation, Message
from inference import relay, viewers

Change = Literal["created", "titled", "updated", "deleted", "answering", "answered"]


def tell_chat(conversation: Conversation, change: Change, **more: Any) -> None:
    """Tell every page of the conversation's owner, at any web process, what has become of a chat.

    `title` is the title that it has now, and `generation` (answering, answered) the answer in question.
    """
    user_id = conversation.user_id
    data = {"conversation": str(conversation.pk), "change": change, "title": conversation.title, **more}
    transaction.on_commit(lambda: relay.call(relay.tell(user_id, "chats", data)))


def note_reading(messages: Sequence[Message]) -> None:
    """Somebody asks for these without following: the answers among them that are open are not abandoned."""
    ids = [message.generation_id for message in messages if message.generation_id and message.finish_reason is None]
    if ids:
        relay.call(viewers.seen(ids))
