"""allauth's adapter: accounts that people make themselves are like those that an operator makes."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from django import forms
from django.conf import settings
from django.contrib.admin.forms import AdminAuthenticationForm
from django.http import HttpRequest
from django.shortcuts import redirect

from billing.errors import Refusal
from billing.models import User
from billing.operations import enroll


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """Named by ACCOUNT_ADAPTER."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return bool(settings.SIGNUP_OPEN)

    def save_user(self, request: HttpRequest, user: User, form: forms.BaseForm, commit: bool = True) -> User:
        """Where another request takes the address at this very moment, there is an account to log in to."""
        super().save_user(request, user, form, commit=False)
        if not commit:
            return user
        try:
            return enroll(user)
        except Refusal as refusal:
            raise ImmediateHttpResponse(redirect("account_login")) from refusal

    def clean_email(self, email: str) -> str:
        return str(super().clean_email(email)).lower()

    def add_message(self, *args: Any, **kwargs: Any) -> None:
        """The pages say what happened where it happened."""


class ThrottledAdminLogin(AdminAuthenticationForm):
    """The admin's log-in form, under the same limits as the site's."""

    def clean(self) -> dict[str, Any]:
        username, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if username is not None and password:
            # Raises ValidationError when there were too many attempts.
            self.user_cache = AccountAdapter().authenticate(self.request, email=username, password=password)
            if self.user_cache is None:
                raise self.get_invalid_login_error()
            self.confirm_login_allowed(self.user_cache)
        return self.cleaned_data
