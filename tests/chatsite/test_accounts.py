"""Accounts: sign up, log in and out, passwords, limits. Real allauth, real stores."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from django.core import mail
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from billing.models import Organization, User
from billing.operations import create_user
from tests.conftest import PASSWORD

NEW = {"email": "Ada@Example.org", "password1": PASSWORD, "password2": PASSWORD}


@pytest.fixture(autouse=True)
def no_attempts_yet(db: None) -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def client() -> Client:
    return Client(raise_request_exception=False)


def log_in(client: Client, email: str, password: str = PASSWORD) -> Any:
    return client.post(reverse("account_login"), {"login": email, "password": password})


def is_logged_in(client: Client) -> bool:
    return client.get(reverse("settings")).status_code == 200


def test_sign_up_makes_an_account_like_an_operators(client: Client) -> None:
    assert client.post(reverse("account_signup"), NEW).status_code == 302
    user = User.objects.select_related("organization", "plan").get()
    assert (user.email, user.organization.name, user.plan.is_default) == ("ada@example.org", "ada@example.org", True)
    assert not user.is_staff and user.check_password(PASSWORD)
    assert is_logged_in(client)


@pytest.mark.parametrize("email", ["user@example.org", "USER@Example.ORG"])
def test_an_address_has_one_account_in_any_case(client: Client, user: User, email: str) -> None:
    page = client.post(reverse("account_signup"), NEW | {"email": email})
    assert page.status_code == 200 and page.context["form"].errors
    assert (User.objects.count(), Organization.objects.count()) == (1, 1)


@pytest.mark.parametrize(
    "bad",
    [
        {"email": "no address"}, {"email": "a\0b@example.org"}, {"email": ""},
        {"password1": "short", "password2": "short"}, {"password2": "another"}, {"email": "\ud800@example.org"},
    ],
    ids=str,
)  # fmt: skip
def test_bad_sign_ups_are_refused(client: Client, bad: dict[str, str]) -> None:
    body = urlencode(NEW | bad, errors="surrogatepass")
    page = client.post(reverse("account_signup"), body, content_type="application/x-www-form-urlencoded")
    assert page.status_code == 200 and not User.objects.exists()


def test_sign_up_can_be_closed(client: Client, settings: Any) -> None:
    settings.SIGNUP_OPEN = False
    page = client.post(reverse("account_signup"), NEW)
    assert b"Sign-up is closed" in page.content and not User.objects.exists()
    assert reverse("account_signup").encode() not in client.get(reverse("account_login")).content


@pytest.mark.parametrize("email", ["user@example.org", "User@EXAMPLE.org"])
def test_log_in_and_out(client: Client, user: User, email: str) -> None:
    assert log_in(client, email).status_code == 302
    assert is_logged_in(client)
    assert client.get(reverse("account_logout")).status_code == 200  # a link alone logs nobody out
    assert is_logged_in(client)
    client.post(reverse("account_logout"))
    assert not is_logged_in(client)


def test_wrong_password_and_closed_account(client: Client, user: User) -> None:
    assert log_in(client, user.email, "wrong").status_code == 200
    User.objects.update(is_active=False)
    log_in(client, user.email)
    assert not is_logged_in(client)


@pytest.mark.parametrize("path", ["account_login", "admin:login"])
def test_guessing_a_password_is_throttled_everywhere(client: Client, user: User, path: str) -> None:
    User.objects.update(is_staff=True)
    for _ in range(5):
        client.post(reverse(path), {"login": user.email, "username": user.email, "password": "wrong"})
    client.post(reverse(path), {"login": user.email, "username": user.email, "password": PASSWORD})
    assert not is_logged_in(client)


def test_the_admins_own_log_in(client: Client) -> None:
    root = create_user(email="root@example.org", password=PASSWORD, is_superuser=True)
    client.post(reverse("admin:login"), {"username": "Root@example.org", "password": PASSWORD})
    assert client.get(reverse("admin:index")).status_code == 200
    assert str(root.pk) == client.session["_auth_user_id"]


def test_password_is_changed_and_other_sessions_end(client: Client, user: User) -> None:
    other = Client()
    log_in(other, user.email)
    log_in(client, user.email)
    fields = {"oldpassword": PASSWORD, "password1": "wide-rivers-8", "password2": "wide-rivers-8"}
    assert client.post(reverse("account_change_password"), fields).status_code == 302
    assert is_logged_in(client) and not is_logged_in(other)
    user.refresh_from_db()
    assert user.check_password("wide-rivers-8")


def test_password_is_reset_by_mail(client: Client, user: User) -> None:
    client.post(reverse("account_reset_password"), {"email": user.email.upper()})
    (link,) = re.findall(r"http://testserver(/accounts/password/reset/key/\S+)", mail.outbox[0].body)
    page = client.get(link, follow=True)
    fields = {"password1": "wide-rivers-8", "password2": "wide-rivers-8"}
    assert client.post(page.request["PATH_INFO"], fields).status_code == 302
    assert log_in(client, user.email, "wide-rivers-8").status_code == 302
    assert b"no longer valid" in Client().get(link, follow=True).content


def test_a_reset_for_nobody_says_nothing(client: Client, user: User) -> None:
    answers = [client.post(reverse("account_reset_password"), {"email": email}) for email in ("x@y.org", user.email)]
    assert [answer.status_code for answer in answers] == [302, 302]
    assert answers[0]["Location"] == answers[1]["Location"]


@pytest.mark.parametrize(
    "name",
    [
        "account_login",
        "account_signup",
        "account_reset_password",
        "account_reset_password_done",
        "account_reset_password_from_key_done",
        "account_email_verification_sent",
        "account_inactive",
    ],
)
def test_pages_load(client: Client, db: None, name: str) -> None:
    page = client.get(reverse(name))
    assert page.status_code == 200 and b"<h1>" in page.content


def test_confirming_the_address_opens_the_account(client: Client, settings: Any) -> None:
    settings.ACCOUNT_EMAIL_VERIFICATION = "mandatory"
    client.post(reverse("account_signup"), NEW)
    assert not is_logged_in(client)
    (link,) = re.findall(r"http://testserver(/accounts/confirm-email/\S+)", mail.outbox[0].body)
    assert b"ada@example.org" in client.get(link).content
    client.post(link)
    log_in(client, "ada@example.org")
    assert is_logged_in(client)
