"""The list of chats in the sidebar, by date: what it shows and how it is grouped."""

import datetime
from dataclasses import dataclass

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from billing.models import User
from billing.text import clean
from conversations.models import Conversation
from conversations.operations import TITLE_LENGTH
from conversations.pages import Cursor, after

PAGE = 40


@dataclass(frozen=True)
class Group:
    """Chats of one stretch of time. `name` is empty where the page before began it."""

    name: str
    chats: list[Conversation]
    is_today: bool = False


@dataclass(frozen=True)
class ChatPage:
    """One page of the list; `next_cursor` is None on the last one."""

    groups: list[Group]
    next_cursor: str | None
    query: str
    archived: bool
    is_first: bool


def page_of(user: User, *, query: str = "", archived: bool = False, cursor: Cursor | None = None) -> ChatPage:
    """A page of the user's chats, newest message first. Raises Refusal (invalid_text, text_too_long)."""
    rows = user.conversations.filter(is_archived=archived).defer("system_prompt")
    query = clean(query.strip(), "q", longest=TITLE_LENGTH)
    if query:
        rows = rows.filter(title__icontains=query)
    found = list(after(rows, "updated_at", cursor, newest_first=True)[: PAGE + 1])
    shown = found[:PAGE]
    has_more = len(found) > PAGE
    return ChatPage(
        groups=grouped(shown, timezone.localdate(), cursor),
        next_cursor=Cursor(shown[-1].updated_at, shown[-1].pk).to_text() if has_more else None,
        query=query,
        archived=archived,
        is_first=cursor is None,
    )


def grouped(chats: list[Conversation], today: datetime.date, cursor: Cursor | None = None) -> list[Group]:
    """Chats under the name of their time; dates are those of the current time zone."""
    groups: list[Group] = []
    last = name_of(timezone.localdate(cursor.time), today) if cursor else None
    for chat in chats:
        name = name_of(timezone.localdate(chat.updated_at), today)
        if name != last or not groups:
            groups.append(Group("" if name == last else name, [], is_today=name == name_of(today, today)))
            last = name
        groups[-1].chats.append(chat)
    return groups


def name_of(day: datetime.date, today: datetime.date) -> str:
    """Today, Yesterday, Previous 7 days, Previous 30 days; then months."""
    age = (today - day).days
    if age <= 0:
        return _("Today")
    if age == 1:
        return _("Yesterday")
    if age <= 7:
        return _("Previous 7 days")
    if age <= 30:
        return _("Previous 30 days")
    return date_format(day, "YEAR_MONTH_FORMAT")
