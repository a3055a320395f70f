"""Acts on accounts, keys, reservations and the ledger."""

import zoneinfo
from dataclasses import dataclass
from uuid import UUID

from allauth.account.models import EmailAddress
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.utils import timezone

from billing import counters, pricing
from billing.errors import Refusal, not_found
from billing.limits import Allowed, Refused, decide
from billing.models import ApiKey, LedgerEntry, Organization, Plan, User
from billing.text import clean


def create_user(*, email: str, password: str, is_superuser: bool = False) -> User:
    """A new account in an organization of its own, on the default plan.

    Raises Refusal (invalid_email, weak_password, email_taken).
    """
    email = email.strip().lower()
    try:
        validate_email(email)
    except ValidationError as error:
        raise Refusal("invalid_email", error.messages[0], param="email") from None
    try:
        validate_password(password)
    except ValidationError as error:
        raise Refusal("weak_password", " ".join(error.messages), param="password") from None
    user = User(email=email, is_staff=is_superuser, is_superuser=is_superuser)
    user.set_password(password)
    return enroll(user)


def enroll(user: User) -> User:
    """Save a new user in an organization of their own, on the default plan. Raises Refusal (email_taken)."""
    user.email, user.plan = user.email.lower(), default_plan()
    try:
        with transaction.atomic():
            user.organization = Organization.objects.create(name=user.email)
            user.save(force_insert=True)
    except IntegrityError:
        raise Refusal("email_taken", "There is an account with this address.", param="email") from None
    return user


def set_preferences(*, user: User, theme: str, time_zone: str) -> None:
    """How the site looks to them. Raises Refusal (invalid_theme, invalid_time_zone)."""
    if theme not in User.Theme:
        raise Refusal("invalid_theme", f"theme is one of {', '.join(User.Theme)}.", param="theme")
    if time_zone not in zoneinfo.available_timezones():
        raise Refusal("invalid_time_zone", "This time zone is unknown here.", param="time_zone")
    user.theme, user.time_zone = theme, time_zone
    user.save(update_fields=["theme", "time_zone"])


def set_active(*, user: User, is_active: bool) -> None:
    """Let an account in, or keep it out: sessions and API keys of an inactive one open nothing."""
    User.objects.filter(pk=user.pk).update(is_active=is_active)
    user.is_active = is_active


def forget_addresses(*, user: User) -> None:
    """The account's e-mail address was changed: earlier ones, which allauth keeps, open it no more."""
    EmailAddress.objects.filter(user=user).exclude(email=user.email).delete()


def default_plan() -> Plan:
    """The plan of new accounts. The first migration ships one; an operator may choose another."""
    return Plan.objects.order_by("-is_default", "band", "pk")[0]


def issue_key(*, user: User, name: str) -> tuple[ApiKey, str]:
    """A new API key and its secret, which cannot be shown again. Raises Refusal (invalid_name, invalid_text)."""
    name = clean(name, "name").strip()
    if not name or len(name) > 100:
        raise Refusal("invalid_name", "A key's name has 1 to 100 characters.", param="name")
    secret = ApiKey.make_secret()
    key = ApiKey.objects.create(
        user=user, name=name, hint=secret[: len(ApiKey.PREFIX) + 4], digest=ApiKey.digest_of(secret)
    )
    return key, secret


def revoke_key(*, user: User, key_id: UUID) -> None:
    """The key stops working at once. Revoking twice is harmless. Raises Refusal (not_found)."""
    if not user.api_keys.filter(pk=key_id).exists():
        raise not_found("API key")
    user.api_keys.filter(pk=key_id, revoked_at=None).update(revoked_at=timezone.now())


@dataclass(frozen=True)
class Principal:
    """Who makes a request: a person, and the key they used, if any."""

    user: User
    api_key: ApiKey | None = None

    @property
    def api_key_id(self) -> UUID | None:
        return self.api_key.pk if self.api_key else None


def admit(*, generation_id: UUID, user: User, prompt_tokens: int, room: int, asked: int | None) -> Allowed:
    """Reserve a place and tokens for one generation, in one atomic step of the counter store.

    `room`: output tokens that model and context allow; `asked`: what the caller wants at most. Raises Refusal
    (too_many_generations with 429; unavailable with 503 when the counters cannot be reached).
    """
    decision = decide(room=room, asked=asked, plan_output=user.plan.max_output_tokens)
    if isinstance(decision, Refused):
        raise Refusal(decision.reason, decision.message, status=429, retry_after=decision.retry_after)
    tokens = prompt_tokens + decision.granted_tokens
    if not counters.reserve(user.pk, generation_id, tokens, user.plan.max_concurrent):
        raise Refusal(
            "too_many_generations",
            f"Your plan runs {user.plan.max_concurrent} answers at a time; wait for one to end.",
            status=429,
            retry_after=5,
        )
    return decision


def release(*, user_id: UUID, generation_id: UUID) -> None:
    """Give a reservation back. Doing it twice is harmless; a store that is away is left to the sweep."""
    counters.release(user_id, [generation_id])


@dataclass(frozen=True)
class Usage:
    """What one generation used, in tokens."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


def book(
    *,
    generation_id: UUID,
    user_id: UUID,
    organization_id: UUID,
    api_key_id: UUID | None,
    model: str,
    purpose: str,
    prices: pricing.Prices,
    usage: Usage,
    finish_reason: str,
) -> LedgerEntry:
    """Write the ledger entry of an ended generation; called inside the finishing transaction.

    Raises IntegrityError when this generation is booked already.
    """
    return LedgerEntry.objects.create(
        generation_id=generation_id,
        user_id=user_id,
        organization_id=organization_id,
        api_key_id=api_key_id,
        model=model,
        purpose=purpose,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        finish_reason=finish_reason,
        cost_micro=0 if purpose != "chat" else pricing.cost(prices, usage.prompt_tokens, usage.completion_tokens),
    )
