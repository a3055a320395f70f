"""What the other pages of a person are told about their chats: hints, sent after commit, lost without harm."""

from typing import Any, Literal

from django.db import transaction

from conversations.models import Conversation
from inference import relay

Change = Literal["created", "titled", "updated", "deleted", "answering", "answered"]


def tell_chat(conversation: Conversation, change: Change, **more: Any) -> None:
    """Tell every page of the conversation's owner, at any web process, what has become of a chat.

    `title` is the title that it has now, and `generation` (answering, answered) the answer in question.
    """
    user_id = conversation.user_id
    data = {"conversation": str(conversation.pk), "change": change, "title": conversation.title, **more}
    transaction.on_commit(lambda: relay.call(relay.tell(user_id, "chats", data)))
