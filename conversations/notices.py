"""What the other pages of a person are told about their chats: hints, sent after commit, lost without harm."""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

from django.db import transaction
from django.http import HttpRequest

from billing.models import User
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


def session_name(key: str) -> str:
    """What a session is called where others read along: not its key."""
    return hashlib.sha256(key.encode()).hexdigest()


def tell_logged_out(sender: object, request: HttpRequest, user: User | None, **_: object) -> None:
    """Tell the sockets of a session that it ends (receiver of user_logged_out).

    Every socket looks for itself, too (sockets.RECHECK_S).
    """
    key = request.session.session_key
    if user is not None and key:
        relay.call(relay.tell(user.pk, "session", {"ended": session_name(key)}))


def note_reading(messages: Sequence[Message]) -> None:
    """Somebody asks for these without following: the answers among them that are open are not abandoned."""
    ids = [message.generation_id for message in messages if message.generation_id and message.finish_reason is None]
    if ids:
        relay.call(viewers.seen(ids))
