"""Acts on accounts, keys and the ledger; reservations are in billing.admission, plans in billing.plans."""

import zoneinfo
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from allauth.account.models import EmailAddress
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from django.utils import timezone

from billing import pricing
from billing.errors import Refusal, not_found
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
    """Save a new user, as the owner of an organization of their own, on the default plan.

    Raises Refusal (email_taken).
    """
    user.email, user.plan = user.email.lower(), default_plan()
    try:
        with transaction.atomic():
            user.organization = user.owner_of = Organization.objects.create(name=user.email)
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
    admitted_at: datetime | None = None,
) -> LedgerEntry:
    """Write the ledger entry of an ended generation; called inside the finishing transaction.

    `admitted_at`: when it was reserved, by the counters' clock; its windows count it from then. Raises
    IntegrityError when this generation is booked already.
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
        price_multiplier=prices.multiplier,
        cost_micro=0 if purpose != "chat" else pricing.cost(prices, usage.prompt_tokens, usage.completion_tokens),
        admitted_at=admitted_at,
        created_at=Now(),  # not this machine's clock: windows and days are the database's
    )


def correct(
    *, entry: LedgerEntry, prompt_tokens: int = 0, completion_tokens: int = 0, cost_micro: int = 0, note: str
) -> LedgerEntry:
    """Add an entry that changes the sums of an earlier one, which stays as it is; differences may be negative.

    Money and statistics follow; the windows of limits, which count what was generated, do not.
    """
    return LedgerEntry.objects.create(
        kind=LedgerEntry.Kind.CORRECTION,
        generation_id=entry.generation_id,
        user_id=entry.user_id,
        organization_id=entry.organization_id,
        api_key_id=entry.api_key_id,
        model=entry.model,
        purpose=entry.purpose,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        finish_reason=entry.finish_reason,
        cost_micro=cost_micro,
        note=note,
    )
