"""Branches of a conversation's tree, read with recursive queries: the ORM would need one query per turn."""

from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from conversations.models import Message
from inference.turns import Role

# Reads to the root without contents: what was left out is counted, but a long chat's text is never loaded.
TO_ROOT = """
WITH RECURSIVE branch AS (
    SELECT id, parent_id, sender_role, token_count, content <> '' AS has_text, 1 AS depth
    FROM {table} WHERE id = %s AND conversation_id = %s
  UNION ALL
    SELECT m.id, m.parent_id, m.sender_role, m.token_count, m.content <> '', depth + 1
    FROM {table} m JOIN branch ON m.id = branch.parent_id
)
SELECT id, sender_role, token_count FROM branch WHERE has_text ORDER BY depth DESC
"""
FROM_MESSAGE = """
WITH RECURSIVE branch AS (
    SELECT id FROM {table} WHERE id = %s AND conversation_id = %s
  UNION ALL
    SELECT m.id FROM {table} m JOIN branch ON m.parent_id = branch.id
)
SELECT id FROM branch
"""


@dataclass(frozen=True)
class Node:
    """A turn without its text; `token_count` is the text's."""

    id: UUID
    role: Role
    token_count: int


def to_root(conversation_id: UUID, leaf: UUID) -> list[Node]:
    """The turns from the root to `leaf` that have text (a failed answer may have none)."""
    return [Node(*row) for row in _rows(TO_ROOT, leaf, conversation_id)]


def below(conversation_id: UUID, message_id: UUID) -> list[UUID]:
    """A message and everything under it; empty when the conversation does not hold it."""
    return [row[0] for row in _rows(FROM_MESSAGE, message_id, conversation_id)]


def texts(ids: list[UUID]) -> dict[UUID, str]:
    """Contents by message id."""
    return dict(Message.objects.filter(pk__in=ids).order_by().values_list("pk", "content")) if ids else {}


def _rows(query: str, *parameters: UUID) -> list[tuple[UUID, Role, int]]:
    with connection.cursor() as cursor:
        cursor.execute(query.format(table=Message._meta.db_table), parameters)
        rows: list[tuple[UUID, Role, int]] = cursor.fetchall()
        return rows
