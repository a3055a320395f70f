"""Cursor pages: a position in an order that has no ties, so that no row is shown twice or left out."""

import base64
import binascii
import datetime
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from django.db.models import Model, Q, QuerySet

from billing.errors import Refusal


@dataclass(frozen=True)
class Cursor:
    """The last row that a reader has."""

    time: datetime.datetime
    id: UUID

    def to_text(self) -> str:
        return base64.urlsafe_b64encode(f"{self.time.isoformat()} {self.id.hex}".encode()).decode().rstrip("=")

    @classmethod
    def from_text(cls, text: str) -> "Cursor":
        """The inverse of to_text. Raises Refusal (invalid_cursor)."""
        try:
            time, _, row = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition(" ")
            cursor = cls(datetime.datetime.fromisoformat(time), UUID(row))
        except (ValueError, binascii.Error):
            cursor = None
        if cursor is None or cursor.time.tzinfo is None:
            raise Refusal("invalid_cursor", "cursor must come from an earlier page.", param="cursor")
        return cursor


def page_size(text: str | None, *, default: int, most: int) -> int:
    """The `limit` parameter. Raises Refusal (invalid_request)."""
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= most):
        raise Refusal("invalid_request", f"limit must be a number from 1 to {most}.", param="limit")
    return int(text[:9])


M = TypeVar("M", bound=Model)


def after(rows: QuerySet[M], field: str, cursor: Cursor | None, *, newest_first: bool) -> QuerySet[M]:
    """`rows` by the time in `field` and then by id, from behind `cursor` on."""
    sign, step = ("-", "lt") if newest_first else ("", "gt")
    rows = rows.order_by(f"{sign}{field}", f"{sign}id")
    if cursor is None:
        return rows
    # The first condition alone is what the index can use.
    behind = Q(**{f"{field}__{step}": cursor.time}) | Q(**{f"id__{step}": cursor.id})
    return rows.filter(behind, **{f"{field}__{step}e": cursor.time})
