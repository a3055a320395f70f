"""The chat's pages and the partials that htmx and the scripts put into them."""

from collections.abc import Callable
from functools import wraps
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from billing.errors import Refusal
from billing.models import User
from conversations import operations, transcript
from conversations.choices import models_to_choose
from conversations.models import Conversation
from conversations.pages import Cursor
from conversations.sidebar import page_of

View = Callable[..., HttpResponse]


def page(view: View) -> View:
    """A view for people who are logged in. What is not theirs, or not there, is the site's 404 page."""

    @login_required
    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            response = view(request, *args, **kwargs)
        except Refusal as refusal:
            if refusal.status == 404:
                raise Http404(refusal.message) from None
            response = render(request, "chat/_refusal.html", {"refusal": refusal}, status=refusal.status)
        # Back must never show a partial, nor a chat as it was: it is asked for again.
        patch_vary_headers(response, ["HX-Request"])
        response["Cache-Control"] = "no-store"
        return response

    return answered


def user_of(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


def layout(request: HttpRequest) -> str:
    """The frame, unless htmx swaps the main column only. Going back in history loads the whole page's markup."""
    headers = request.headers
    is_partial = headers.get("HX-Target") == "main" and "HX-History-Restore-Request" not in headers
    return "partial.html" if is_partial else "base.html"


@require_safe
@page
def new_chat(request: HttpRequest) -> HttpResponse:
    return render(request, "chat/chat.html", {"layout": layout(request), "models": models_to_choose(user_of(request))})


@require_safe
@page
def chat(request: HttpRequest, conversation_id: UUID) -> HttpResponse:
    """A conversation, on the branch of ?leaf=."""
    conversation = operations.owned(user_of(request), conversation_id)
    turns = transcript.turns(conversation, _uuid(request.GET.get("leaf")))
    return render(
        request,
        "chat/chat.html",
        {
            "layout": layout(request),
            "conversation": conversation,
            "turns": turns,
            "models": models_to_choose(user_of(request), conversation.model_version),
        },
    )


@require_safe
@page
def turn(request: HttpRequest, conversation_id: UUID, message_id: UUID) -> HttpResponse:
    """One message with its actions, for the scripts."""
    conversation = operations.owned(user_of(request), conversation_id)
    found = transcript.turn(conversation, message_id)
    if found is None:
        raise Http404
    return render(request, "chat/_turn.html", {"turn": found, "conversation": conversation})


@require_safe
@page
def chats(request: HttpRequest) -> HttpResponse:
    """A page of the sidebar's list."""
    query = request.GET
    found = page_of(
        user_of(request),
        query=query.get("q", ""),
        archived=query.get("archived") == "1",
        cursor=Cursor.from_text(query["cursor"]) if query.get("cursor") else None,
    )
    return render(request, "chat/_chats.html", {"chats": found})


@require_http_methods(["GET", "HEAD", "POST"])
@page
def rename(request: HttpRequest, conversation_id: UUID) -> HttpResponse:
    """The form in place of a list item; then the item again."""
    if request.method != "POST":
        found = operations.owned(user_of(request), conversation_id)
        return render(request, "chat/_rename.html", {"chat": found, "title": found.title})
    title = request.POST.get("title", "").strip()
    try:
        found = operations.update(user=user_of(request), conversation_id=conversation_id, title=title)
    except Refusal as refusal:
        if refusal.status == 404:
            raise
        found = operations.owned(user_of(request), conversation_id)
        return render(request, "chat/_rename.html", {"chat": found, "title": title, "error": refusal.message})
    return render(request, "chat/_chat.html", {"chat": found})


@require_safe
@page
def item(request: HttpRequest, conversation_id: UUID) -> HttpResponse:
    """The list item, when renaming was called off."""
    return render(request, "chat/_chat.html", {"chat": operations.owned(user_of(request), conversation_id)})


@require_POST
@page
def archive(request: HttpRequest, conversation_id: UUID) -> HttpResponse:
    """Into the archive, or out of it with archived=0. The item leaves the list that shows it."""
    is_archived = request.POST.get("archived") != "0"
    found = operations.update(user=user_of(request), conversation_id=conversation_id, is_archived=is_archived)
    return _left_list(request, found)


@require_POST
@page
def delete(request: HttpRequest, conversation_id: UUID) -> HttpResponse:
    found = operations.owned(user_of(request), conversation_id)
    operations.delete_conversation(user=user_of(request), conversation_id=conversation_id)
    return _left_list(request, found)


def _left_list(request: HttpRequest, conversation: Conversation) -> HttpResponse:
    """Nothing in the item's place; who looks at that chat is taken to a new one."""
    response = HttpResponse()
    if str(conversation.pk) in request.headers.get("HX-Current-URL", ""):
        response["HX-Redirect"] = reverse("new-chat")
    return response


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None
