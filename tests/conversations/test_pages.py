"""The chat's pages as the server renders them."""

import re
from uuid import UUID, uuid4

import pytest
from django.test import Client

from billing.models import User
from billing.operations import Principal
from conversations import operations
from conversations.models import Conversation, Message
from conversations.operations import Sent
from inference.models import ServedModel
from tests.conversations.conftest import Finish

MAIN = {"HX-Request": "true", "HX-Target": "main"}


@pytest.fixture
def browser(user: User) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client


@pytest.fixture
def sent(user: User, conversation: Conversation) -> Sent:
    """A question whose answer is being written."""
    principal = Principal(user)
    return operations.send(principal=principal, conversation_id=conversation.pk, content="Why <b>?", message_id=uuid4())


def messages(html: str) -> list[UUID]:
    return [UUID(text) for text in re.findall(r'data-message="([^"]+)"', html)]


def test_without_a_login_there_is_only_the_login_page(client: Client, conversation: Conversation) -> None:
    for path in ("/", f"/c/{conversation.pk}", "/chats"):
        assert client.get(path)["Location"].startswith("/accounts/login/?next=")


def test_others_chats_are_not_there(stranger: User, sent: Sent) -> None:
    client = Client()
    client.force_login(stranger)
    chat = f"/c/{sent.conversation.pk}"
    for path in (chat, f"{chat}/turns/{sent.user_message.pk}", f"{chat}/rename", f"{chat}/item"):
        response = client.get(path)
        assert response.status_code == 404
        assert b"Why" not in response.content
    for path in (f"{chat}/rename", f"{chat}/archive", f"{chat}/delete"):
        assert client.post(path, {"title": "Mine"}).status_code == 404
    sent.conversation.refresh_from_db()
    assert sent.conversation.title != "Mine"
    assert not sent.conversation.is_archived


def test_a_turn_of_another_chat_is_not_there(browser: Client, user: User, sent: Sent) -> None:
    other = operations.start(user=user)
    assert browser.get(f"/c/{other.pk}/turns/{sent.user_message.pk}").status_code == 404


def test_an_answer_that_runs_is_named_and_left_to_the_stream(browser: Client, sent: Sent) -> None:
    html = browser.get(f"/c/{sent.conversation.pk}").content.decode()
    assert messages(html) == [sent.user_message.pk, sent.assistant_message.pk]
    assert f'data-generation="{sent.generation.pk}"' in html
    assert "Why &lt;b&gt;?" in html


def test_an_answer_that_ended_is_whole_and_says_how(browser: Client, sent: Sent, finish: Finish) -> None:
    finish(sent.generation, "Because **so**.", reason="length")
    html = browser.get(f"/c/{sent.conversation.pk}/turns/{sent.assistant_message.pk}").content.decode()
    assert "<strong>so</strong>" in html
    assert "data-generation" not in html
    assert "Length limit reached" in html
    assert "Continue" in html


@pytest.mark.parametrize(
    ("reason", "words"),
    [("cancelled", "Stopped by you"), ("limit_reached", "Your tokens are used up"), ("error", "The answer broke off.")],
)
def test_endings(browser: Client, sent: Sent, reason: str, words: str) -> None:
    Message.objects.filter(pk=sent.assistant_message.pk).update(finish_reason=reason, generation=None)
    assert words in browser.get(f"/c/{sent.conversation.pk}").content.decode()


@pytest.mark.parametrize(("content", "offered"), [("Because", True), ("", False)])
def test_an_answer_that_broke_off_can_be_continued_or_asked_for_again(
    browser: Client, sent: Sent, content: str, offered: bool
) -> None:
    Message.objects.filter(pk=sent.assistant_message.pk).update(finish_reason="error", generation=None, content=content)
    html = browser.get(f"/c/{sent.conversation.pk}").content.decode()
    assert 'data-do="regenerate"' in html and ('data-do="continue"' in html) == offered


def test_the_newest_branch_is_shown_unless_another_is_asked_for(
    browser: Client, user: User, sent: Sent, finish: Finish
) -> None:
    finish(sent.generation)
    principal, chat = Principal(user), sent.conversation.pk
    second = operations.edit(
        principal=principal, conversation_id=chat, message_id=sent.user_message.pk, content="Who?", new_id=uuid4()
    )
    first = [sent.user_message.pk, sent.assistant_message.pk]
    newest = [second.user_message.pk, second.assistant_message.pk]
    html = browser.get(f"/c/{chat}").content.decode()
    assert messages(html) == newest
    assert "2/2" in html
    assert messages(browser.get(f"/c/{chat}?leaf={first[0]}").content.decode()) == first
    assert messages(browser.get(f"/c/{chat}?leaf={uuid4()}").content.decode()) == newest
    assert messages(browser.get(f"/c/{chat}?leaf=nonsense").content.decode()) == newest


def test_htmx_gets_the_main_column_and_history_the_page(browser: Client, conversation: Conversation) -> None:
    path = f"/c/{conversation.pk}"
    part = browser.get(path, headers=MAIN)
    assert b"<html" not in part.content
    assert b"<title>" in part.content
    assert "HX-Request" in part["Vary"]
    assert part["Cache-Control"] == "no-store"
    assert b"<html" in browser.get(path, headers={**MAIN, "HX-History-Restore-Request": "true"}).content


def test_rename(browser: Client, conversation: Conversation) -> None:
    path = f"/c/{conversation.pk}/rename"
    assert b'name="title"' in browser.get(path).content
    assert b"New name" in browser.post(path, {"title": " New name "}).content
    for bad in ("a\0b", "x" * 300):
        answer = browser.post(path, {"title": bad})
        assert answer.status_code == 200
        assert b'aria-invalid="true"' in answer.content
    conversation.refresh_from_db()
    assert conversation.title == "New name"


def test_archive_and_delete(browser: Client, user: User, conversation: Conversation) -> None:
    path = f"/c/{conversation.pk}"
    assert "HX-Redirect" not in browser.post(f"{path}/archive").headers
    assert str(conversation.pk) not in browser.get("/chats").content.decode()
    assert str(conversation.pk) in browser.get("/chats?archived=1").content.decode()
    browser.post(f"{path}/archive", {"archived": "0"})
    assert str(conversation.pk) in browser.get("/chats").content.decode()
    shown = {"HX-Current-URL": f"https://chat.example.org{path}?leaf=x"}
    assert browser.post(f"{path}/delete", headers=shown)["HX-Redirect"] == "/"
    assert not user.conversations.exists()
    assert browser.get(f"{path}/delete").status_code == 405


def test_search_and_garbage(browser: Client, user: User, echo_model: ServedModel) -> None:
    """Case 25."""
    operations.start(user=user, title="Ärger mit 100 %")
    operations.start(user=user, title="Other")
    assert "Other" not in browser.get("/chats", {"q": "ärger"}).content.decode()
    assert "Other" not in browser.get("/chats", {"q": "0 %"}).content.decode()
    assert "No chat has this" in browser.get("/chats", {"q": "_____"}).content.decode()
    for query in ({"q": "a\0b"}, {"q": "x" * 300}, {"cursor": "nonsense"}, {"cursor": "\0"}):
        assert browser.get("/chats", query).status_code == 400


def test_a_title_cannot_act(browser: Client, user: User, echo_model: ServedModel) -> None:
    """Case 40."""
    conversation = operations.start(user=user, title="<img src=x onerror=alert(1)>\"'")
    for path in ("/", f"/c/{conversation.pk}", f"/c/{conversation.pk}/rename"):
        assert "<img" not in browser.get(path).content.decode()


def test_the_pages_hold_no_inline_script_or_style(browser: Client, sent: Sent) -> None:
    html = browser.get(f"/c/{sent.conversation.pk}").content.decode()
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", html)
    scripts = re.findall(r"<script([^>]*)>", html)
    assert all("src=" in script or "application/json" in script for script in scripts)
