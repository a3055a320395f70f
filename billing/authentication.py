"""Who makes a request: an API key, or a session. For consumers; billing.rest has the same for DRF."""

import datetime
from collections.abc import Sequence
from http.cookies import SimpleCookie
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from billing.errors import Refusal
from billing.models import PLAN_ROWS, ApiKey, User
from billing.operations import Principal

LAST_USED_STEP = datetime.timedelta(minutes=1)


def unauthenticated(message: str = "Give an API key: Authorization: Bearer sk-chat-…") -> Refusal:
    return Refusal("invalid_api_key", message, status=401)


def key_principal(authorization: str, *, plan_rows: Sequence[str] = PLAN_ROWS) -> Principal:
    """The owner of the key in an Authorization header. Raises Refusal (401).

    `plan_rows`: what is read with them of what their plan may be; the rest when it is asked for.
    `last_used_at` is kept to the minute, so that a busy key does not write on every request.
    """
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != "bearer" or not secret.strip().isascii():
        raise unauthenticated()
    digest = ApiKey.digest_of(secret.strip())
    rows = ApiKey.objects.select_related("user", *(f"user__{row}" for row in plan_rows))
    key = rows.filter(digest=digest, revoked_at=None, user__is_active=True).first()
    if key is None:
        raise unauthenticated("This API key is unknown or revoked.")
    now = timezone.now()
    if key.last_used_at is None or key.last_used_at < now - LAST_USED_STEP:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
    return Principal(key.user, key)


def session_key(cookie_header: str) -> str | None:
    """The session that the cookies name; it need not exist."""
    morsel = SimpleCookie(cookie_header).get(settings.SESSION_COOKIE_NAME)
    return morsel.value if morsel else None


def session_user(cookie_header: str) -> User | None:
    """The active user whose session the cookies name, checked as Django's login does (auth hash), or None."""
    key = session_key(cookie_header)
    if key is None:
        return None
    session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    if session.get(BACKEND_SESSION_KEY) not in settings.AUTHENTICATION_BACKENDS:
        return None
    try:
        user = User.objects.select_related(*PLAN_ROWS).filter(pk=session.get(SESSION_KEY), is_active=True).first()
    except ValidationError:
        return None
    known = user and constant_time_compare(session.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash())
    return user if known else None


def authenticate(scope: dict[str, Any], *, keys_only: bool = False) -> Principal:
    """Who opened this ASGI scope: an API key or, unless `keys_only`, a session.

    With a session the Origin header, where there is one (and always for a WebSocket), must be the site's own:
    cookies travel with other sites' requests, keys do not. Raises Refusal (401, 403). Queries the database.
    """
    headers = {name.decode("latin1").lower(): value.decode("latin1") for name, value in scope["headers"]}
    if "authorization" in headers:
        return key_principal(headers["authorization"])
    if keys_only or "cookie" not in headers:
        raise unauthenticated()
    user = session_user(headers["cookie"])
    if user is None:
        raise unauthenticated("Log in, or give an API key.")
    if not _origin_is_ours(headers, required=scope["type"] == "websocket"):
        raise Refusal("bad_origin", "This request comes from another site.", status=403)
    return Principal(user)


def _origin_is_ours(headers: dict[str, str], *, required: bool) -> bool:
    origin = headers.get("origin")
    if origin is None:
        return not required
    own = {f"http://{headers.get('host')}", f"https://{headers.get('host')}"}
    return origin in own or origin in settings.CSRF_TRUSTED_ORIGINS
