"""A person's own pages: account, API keys, deleting the account. Views parse, call one operation, render."""

import functools
import json
import zoneinfo
from typing import Any
from uuid import UUID

from allauth.core import ratelimit
from django import forms
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from billing.errors import Refusal
from billing.models import User
from billing.operations import issue_key, revoke_key, set_preferences
from conversations import operations
from inference.operations import find_model

QUESTION = "Why is the sky blue?"
NEW_KEY = "new_key"  # in the session, from the request that made it to the page that shows it


@functools.cache
def _zones() -> list[tuple[str, str]]:
    names = {name for name in zoneinfo.available_timezones() if "/" in name and not name.startswith("Etc/")}
    return [("UTC", "UTC"), *((name, name.replace("_", " ")) for name in sorted(names))]


class PreferencesForm(forms.Form):
    theme = forms.ChoiceField(label=_("Theme"), choices=User.Theme.choices)
    time_zone = forms.ChoiceField(label=_("Time zone"), choices=_zones)


class KeyForm(forms.Form):
    name = forms.CharField(label=_("Name"), max_length=100, help_text=_("What the key is for, such as “laptop”."))


class DeleteForm(forms.Form):
    """Asks for the password: an open session must not be enough to delete everything."""

    password = forms.CharField(
        label=_("Password"), strip=False, widget=forms.PasswordInput(attrs={"autocomplete": "current-password"})
    )

    def __init__(self, request: HttpRequest, *args: Any) -> None:
        super().__init__(*args)
        self._request = request

    def clean_password(self) -> str:
        password: str = self.cleaned_data["password"]
        if not ratelimit.consume(self._request, action="reauthenticate", user=self._request.user):
            raise forms.ValidationError(_("Too many attempts; try again in a minute."))
        if not _person(self._request).check_password(password):
            raise forms.ValidationError(_("This is not your password."))
        return password


def _person(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # login_required has let nobody else in
    return request.user


@login_required
@require_http_methods(["GET", "POST"])
def account(request: HttpRequest) -> HttpResponse:
    """E-mail, plan, theme and time zone."""
    user = _person(request)
    form = PreferencesForm(request.POST or None, initial={"theme": user.theme, "time_zone": user.time_zone})
    if form.is_valid():
        set_preferences(user=user, **form.cleaned_data)
        return redirect("settings")
    context = {"form": form, "plan": user.current_plan}
    return render(request, "settings/account.html", context, status=400 if form.errors else 200)


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def keys(request: HttpRequest) -> HttpResponse:
    """The list; the first time after a key was made with its secret, which only that one page shows."""
    user = _person(request)
    form = KeyForm(request.POST or None)
    if form.is_valid():
        try:
            key, secret = issue_key(user=user, name=form.cleaned_data["name"])
        except Refusal as refusal:
            form.add_error("name", refusal.message)
        else:
            request.session[NEW_KEY] = {"name": key.name, "secret": secret}
            return redirect("settings-keys")
    made = request.session.pop(NEW_KEY, None) if request.method == "GET" else None
    context = {
        "form": form,
        "keys": user.api_keys.all(),
        "made": made,
        "curl": _curl(request, made["secret"] if made else "$KEY"),
    }
    return render(request, "settings/keys.html", context, status=400 if form.errors else 200)


def _curl(request: HttpRequest, secret: str) -> str:
    """A line to paste into a shell."""
    try:
        model = find_model(None, _person(request)).name
    except Refusal:
        model = "MODEL"
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": QUESTION}]})
    url = request.build_absolute_uri("/v1/chat/completions")
    return f"curl {url} -H \"Authorization: Bearer {secret}\" -H 'Content-Type: application/json' -d '{body}'"


@login_required
@require_http_methods(["GET", "POST"])
def revoke(request: HttpRequest, key_id: UUID) -> HttpResponse:
    """Asks, then revokes. Another's key is not there."""
    user = _person(request)
    key = user.api_keys.filter(pk=key_id).first()
    if key is None:
        raise Http404
    if request.method == "POST":
        revoke_key(user=user, key_id=key_id)
        return redirect("settings-keys")
    return render(request, "settings/revoke.html", {"key": key})


@login_required
@require_http_methods(["GET", "POST"])
def delete(request: HttpRequest) -> HttpResponse:
    """Asks for the password, then deletes the account with all its chats and keys."""
    form = DeleteForm(request, request.POST or None)
    if not form.is_valid():
        return render(request, "settings/delete.html", {"form": form}, status=400 if form.errors else 200)
    user = _person(request)
    logout(request)
    operations.delete_account(user=user)
    return render(request, "settings/deleted.html")
