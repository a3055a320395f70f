"""Security headers: a strict policy everywhere, relaxed for the one page that needs it."""

import re

import pytest
from django.test import Client

from billing.models import User
from billing.operations import create_user
from inference.models import ServedModel

STRICT = {
    "default-src": "'self'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
PATHS = ["/accounts/login/", "/accounts/signup/", "/admin/login/", "/healthz", "/api/v1/me", "/nothing", "/settings/"]
INLINE = re.compile(
    rb"<style|\sstyle=|\son[a-z]+=|javascript:|<script(?![^>]*\s(src=|type=\"application/json\"))[^>]*>"
)


def policy(response: object) -> dict[str, str]:
    header = response["Content-Security-Policy"]  # type: ignore[index]
    return dict(part.strip().partition(" ")[::2] for part in header.split(";"))


@pytest.mark.parametrize("path", PATHS)
def test_every_page_has_the_headers(path: str, db: None) -> None:
    response = Client(raise_request_exception=False).get(path)
    assert policy(response) == STRICT
    assert response["Referrer-Policy"] == "same-origin"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert "camera=()" in response["Permissions-Policy"] and "clipboard" not in response["Permissions-Policy"]


def test_the_api_page_alone_may_style_inline(db: None) -> None:
    assert policy(Client().get("/api/docs/")) == STRICT | {"style-src": "'self' 'unsafe-inline'"}


@pytest.mark.parametrize(
    "path",
    [
        "/accounts/login/", "/accounts/signup/", "/settings/", "/settings/keys/", "/settings/delete/",
        "/admin/", "/admin/billing/user/", "/admin/billing/user/add/", "/admin/inference/generation/",
        "/admin/billing/plan/1/change/",
    ],
)  # fmt: skip
def test_pages_have_nothing_inline(path: str, user: User, echo_model: ServedModel) -> None:
    """What the policy forbids would be dead weight at best."""
    client = Client()
    if "accounts" not in path:
        client.force_login(create_user(email="root@example.org", password="tall-trees-7", is_superuser=True))
    page = client.get(path, follow=True)
    assert page.status_code == 200 and not INLINE.findall(page.content)


def test_a_store_that_is_away_is_503_with_retry_after(db: None, settings: object) -> None:
    away = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1:1"}
    settings.CACHES = {"default": away}  # type: ignore[attr-defined]
    response = Client().post("/accounts/login/", {"login": "a@b.org", "password": "x"})
    assert response.status_code == 503 and int(response["Retry-After"]) > 0
