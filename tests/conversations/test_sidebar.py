"""The list of chats by date."""

import datetime
import zoneinfo

import pytest
from django.utils import timezone

from billing.models import User
from conversations.models import Conversation
from conversations.pages import Cursor
from conversations.sidebar import PAGE, grouped, name_of, page_of

TODAY = datetime.date(2026, 3, 15)


@pytest.mark.parametrize(
    ("day", "name"),
    [
        ((2026, 3, 16), "Today"),  # a clock that is behind
        ((2026, 3, 15), "Today"),
        ((2026, 3, 14), "Yesterday"),
        ((2026, 3, 13), "Previous 7 days"),
        ((2026, 3, 8), "Previous 7 days"),
        ((2026, 3, 7), "Previous 30 days"),
        ((2026, 2, 13), "Previous 30 days"),
        ((2026, 2, 12), "February 2026"),
        ((2025, 12, 31), "December 2025"),
    ],
)
def test_days_have_names(day: tuple[int, int, int], name: str) -> None:
    assert name_of(datetime.date(*day), TODAY) == name


def chat_at(text: str) -> Conversation:
    return Conversation(updated_at=datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC))


def test_the_date_is_that_of_the_readers_time_zone() -> None:
    chats = [chat_at("2026-03-15T03:00"), chat_at("2026-03-14T12:00")]
    with timezone.override(zoneinfo.ZoneInfo("America/New_York")):  # 23:00 of the day before
        assert [group.name for group in grouped(chats, TODAY)] == ["Yesterday"]
    with timezone.override(datetime.UTC):
        groups = grouped(chats, TODAY)
    assert [(group.name, group.is_today) for group in groups] == [("Today", True), ("Yesterday", False)]


def test_a_next_page_goes_on_without_a_second_heading() -> None:
    last = chat_at("2026-03-14T12:00")
    cursor = Cursor(last.updated_at, last.pk)
    with timezone.override(datetime.UTC):
        groups = grouped([chat_at("2026-03-14T11:00"), chat_at("2026-03-10T11:00")], TODAY, cursor)
    assert [group.name for group in groups] == ["", "Previous 7 days"]


@pytest.mark.django_db
def test_pages_show_each_chat_once(user: User) -> None:
    now = timezone.now()
    Conversation.objects.bulk_create(
        Conversation(user=user, title=f"Chat {n}", model_version="m", updated_at=now - datetime.timedelta(minutes=n))
        for n in range(PAGE * 2 + 5)
    )
    seen: list[str] = []
    cursor = None
    while True:
        page = page_of(user, cursor=cursor)
        seen += [chat.title for group in page.groups for chat in group.chats]
        if page.next_cursor is None:
            break
        cursor = Cursor.from_text(page.next_cursor)
    assert seen == [f"Chat {n}" for n in range(PAGE * 2 + 5)]
