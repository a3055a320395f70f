"""The pages under /settings/: preferences, API keys, deleting the account."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient

from billing.models import ApiKey, LedgerEntry, Organization, User
from billing.operations import Principal, issue_key
from conversations import operations
from conversations.models import Conversation, Message
from inference.models import Generation
from tests.conftest import PASSWORD, client_of
from tests.conversations.conftest import Finish


@pytest.fixture
def browser(user: User) -> Iterator[Client]:
    cache.clear()
    client = Client(raise_request_exception=False)
    client.force_login(user)
    yield client
    cache.clear()


@pytest.mark.parametrize(
    "name", ["settings", "settings-keys", "settings-usage", "settings-delete", "account_change_password"]
)
def test_pages_need_a_log_in(browser: Client, name: str) -> None:
    assert browser.get(reverse(name)).status_code == 200
    away = Client().get(reverse(name))
    assert away.status_code == 302 and away["Location"].startswith(reverse("account_login"))


def test_theme_and_time_zone(browser: Client, user: User) -> None:
    assert browser.post(reverse("settings"), {"theme": "dark", "time_zone": "Asia/Kolkata"}).status_code == 302
    user.refresh_from_db()
    assert (user.theme, user.time_zone) == ("dark", "Asia/Kolkata")
    assert b'data-theme="dark"' in browser.get(reverse("settings")).content


@pytest.mark.parametrize(
    "bad", [{"theme": "pink"}, {"time_zone": "Mars/Base"}, {"time_zone": "a\0b"}, {"time_zone": "../etc"}]
)
def test_bad_preferences_are_refused(browser: Client, user: User, bad: dict[str, str]) -> None:
    fields = {"theme": "dark", "time_zone": "UTC"} | bad
    assert browser.post(reverse("settings"), fields).status_code == 400
    user.refresh_from_db()
    assert user.theme == "system"


def test_times_are_in_the_persons_zone(browser: Client, user: User) -> None:
    issue_key(user=user, name="old")
    ApiKey.objects.update(last_used_at="2026-01-31T20:30:00Z")
    User.objects.update(time_zone="Asia/Kolkata")
    assert b"Feb. 1, 2026, 2 a.m." in browser.get(reverse("settings-keys")).content
    User.objects.update(time_zone="gone/away")
    assert b"Jan. 31, 2026, 8:30 p.m." in browser.get(reverse("settings-keys")).content


def test_a_new_key_is_shown_once_and_works(browser: Client, user: User, echo_model: object) -> None:
    made = browser.post(reverse("settings-keys"), {"name": "laptop"})
    assert (made.status_code, made["Location"], made.content) == (302, reverse("settings-keys"), b"")
    page = browser.get(made["Location"])
    (secret,) = set(re.findall(r"sk-chat-[\w-]{20,}", page.content.decode()))
    assert "curl http://testserver/v1/chat/completions" in page.content.decode()
    assert "no-store" in page["Cache-Control"]
    assert secret not in str(dict(browser.session))
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert api.get("/api/v1/me").json()["email"] == user.email
    listed = browser.get(reverse("settings-keys")).content.decode()
    assert secret not in listed and "laptop" in listed


@pytest.mark.parametrize("name", ["", " ", "a\0b", "x" * 101, "\ud800"])
def test_bad_key_names_are_refused(browser: Client, user: User, name: str) -> None:
    """Case 25."""
    body = urlencode({"name": name}, errors="surrogatepass")
    page = browser.post(reverse("settings-keys"), body, content_type="application/x-www-form-urlencoded")
    if name == "\ud800":  # no UTF-8: Django reads it as replacement characters
        assert set(user.api_keys.get().name) == {"\ufffd"}
    else:
        assert page.status_code == 400 and not user.api_keys.exists()


def test_a_key_is_revoked_after_asking(browser: Client, user: User) -> None:
    key, _ = issue_key(user=user, name="<b>mine</b>")
    path = reverse("settings-key-revoke", args=[key.pk])
    assert b"&lt;b&gt;mine" in browser.get(path).content
    key.refresh_from_db()
    assert key.revoked_at is None
    assert browser.post(path).status_code == 302
    key.refresh_from_db()
    assert key.revoked_at is not None


def test_another_persons_key_is_not_there(browser: Client, stranger: User) -> None:
    key, _ = issue_key(user=stranger, name="theirs")
    path = reverse("settings-key-revoke", args=[key.pk])
    assert [browser.get(path).status_code, browser.post(path).status_code] == [404, 404]
    assert b"theirs" not in browser.get(reverse("settings-keys")).content
    key.refresh_from_db()
    assert key.revoked_at is None


def test_deleting_the_account_needs_the_password(browser: Client, user: User) -> None:
    assert browser.post(reverse("settings-delete"), {"password": "wrong"}).status_code == 400
    assert User.objects.filter(pk=user.pk, is_active=True).exists()


def test_guesses_at_deleting_are_throttled(browser: Client, user: User) -> None:
    for _ in range(10):
        browser.post(reverse("settings-delete"), {"password": "wrong"})
    assert browser.post(reverse("settings-delete"), {"password": PASSWORD}).status_code == 400
    assert User.objects.filter(pk=user.pk).exists()


def test_deleting_the_account_stops_and_deletes_everything_but_the_ledger(
    browser: Client, user: User, stranger: User, principal: Principal, conversation: Conversation, finish: Finish
) -> None:
    theirs = operations.start(user=stranger, title="theirs")
    done = operations.send(principal=principal, conversation_id=conversation.pk, content="One")
    finish(done.generation, "1")
    waiting = operations.send(principal=principal, conversation_id=conversation.pk, content="Two")
    api = client_of(user)
    page = browser.post(reverse("settings-delete"), {"password": PASSWORD})
    assert page.status_code == 200 and b"deleted" in page.content
    assert not User.objects.filter(pk=user.pk).exists()
    assert list(Conversation.objects.all()) == [theirs] and not Message.objects.exists()
    assert not Organization.objects.filter(pk=user.organization_id).exists()
    assert Generation.objects.get(pk=waiting.generation.pk).status == "CANCELLED"
    booked = LedgerEntry.objects.filter(user_id=user.pk)
    assert {entry.generation_id for entry in booked} == {done.generation.pk, waiting.generation.pk}
    assert api.get("/api/v1/me").status_code == 401
    assert browser.get(reverse("settings")).status_code == 302


def test_a_shared_organization_stays(browser: Client, user: User, stranger: User) -> None:
    User.objects.filter(pk=stranger.pk).update(organization=user.organization)
    browser.post(reverse("settings-delete"), {"password": PASSWORD})
    assert Organization.objects.filter(pk=user.organization_id).exists()


def test_an_answer_that_runs_is_flagged_and_ends_without_its_owner(
    user: User, principal: Principal, conversation: Conversation, finish: Finish
) -> None:
    running = operations.send(principal=principal, conversation_id=conversation.pk, content="Go").generation
    Generation.objects.filter(pk=running.pk).update(status="RUNNING", started_at=timezone.now())
    operations.delete_account(user=user)
    left: Any = Generation.objects.get(pk=running.pk)
    assert (left.status, left.cancel_requested) == ("RUNNING", True)
    finish(left, "Half")
    assert LedgerEntry.objects.get(generation_id=running.pk).completion_tokens > 0
