"""One branch of a conversation as a page shows it."""

from collections import defaultdict
from dataclasses import dataclass
from uuid import UUID

from django.db.models import QuerySet
from django.utils.safestring import SafeString

from conversations import wording
from conversations.models import Conversation, Message
from conversations.rendering import render_markdown
from inference.models import Generation


@dataclass(frozen=True)
class Turn:
    """A message with what surrounds it. `number` of `of` counts it among its siblings, from 1.

    `generation` is set while its answer is being written: its text then comes from the stream. `ending` is empty
    for an answer that ended by itself. `is_retryable`: a failed answer to ask for again. `is_cut`: there is
    more to say, and something to go on from.
    """

    message: Message
    number: int
    of: int
    previous: UUID | None
    next: UUID | None
    generation: UUID | None
    finish_reason: str | None

    @property
    def is_user(self) -> bool:
        return self.message.sender_role == Message.Role.USER

    @property
    def html(self) -> SafeString:
        """The answer's Markdown, sanitized; a user's own words are shown as typed."""
        return render_markdown(self.message.content)

    @property
    def ending(self) -> str:
        return wording.ending(self.finish_reason)

    @property
    def is_retryable(self) -> bool:
        return self.finish_reason == "error"

    @property
    def is_cut(self) -> bool:
        return self.finish_reason == "length" or (self.is_retryable and bool(self.message.content))


class Tree:
    """Who follows whom in a conversation: ids only, oldest first among siblings."""

    def __init__(self, conversation: Conversation) -> None:
        rows = conversation.messages.order_by("created_at", "pk").values_list("pk", "parent_id")
        self.parents: dict[UUID, UUID | None] = {}
        self.children: dict[UUID | None, list[UUID]] = defaultdict(list)
        for pk, parent in rows:
            self.parents[pk] = parent
            self.children[parent].append(pk)

    def leaf(self, wanted: UUID | None) -> UUID | None:
        """The newest message, or the newest leaf under `wanted` if this conversation has that."""
        if not self.parents:
            return None
        if wanted not in self.parents:
            return next(reversed(self.parents))
        found = wanted
        while self.children[found]:
            found = self.children[found][-1]
        return found

    def branch(self, leaf: UUID | None) -> list[UUID]:
        """From the root to `leaf`."""
        path: list[UUID] = []
        while leaf is not None:
            path.append(leaf)
            leaf = self.parents.get(leaf)
        return path[::-1]

    def turn(self, message: Message) -> Turn:
        siblings = self.children[message.parent_id]
        at = siblings.index(message.pk)
        generation = message.generation
        is_open = generation is not None and generation.is_open
        return Turn(
            message=message,
            number=at + 1,
            of=len(siblings),
            previous=siblings[at - 1] if at else None,
            next=siblings[at + 1] if at + 1 < len(siblings) else None,
            generation=generation.pk if is_open and generation else None,
            finish_reason=None if is_open else _ended(message, generation),
        )


def turns(conversation: Conversation, leaf: UUID | None) -> list[Turn]:
    """The branch that ends in the newest leaf under `leaf` (None: the newest message)."""
    tree = Tree(conversation)
    ids = tree.branch(tree.leaf(leaf))
    found = {message.pk: message for message in _loaded(conversation.messages.filter(pk__in=ids))}
    # A message that was deleted between the two queries is left out.
    return [tree.turn(found[pk]) for pk in ids if pk in found]


def turn(conversation: Conversation, message_id: UUID) -> Turn | None:
    """One message; None when the conversation does not hold it."""
    tree = Tree(conversation)
    message = _loaded(conversation.messages.filter(pk=message_id)).first()
    return tree.turn(message) if message and message.pk in tree.parents else None


def _loaded(messages: QuerySet[Message]) -> QuerySet[Message]:
    return messages.select_related("generation").defer("generation__prompt", "generation__text")


def _ended(message: Message, generation: Generation | None) -> str | None:
    """How an answer ended: its generation's row is the truth, then the message; an answer with neither was lost."""
    if message.sender_role != Message.Role.ASSISTANT:
        return None
    return message.finish_reason or (generation.finish_reason if generation else None) or "error"
