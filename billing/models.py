"""Who may spend what: organizations, users, plans, keys and the ledger."""

import hashlib
import secrets
import uuid
import zoneinfo
from decimal import Decimal
from typing import Any, ClassVar

from django.contrib.auth.base_user import BaseUserManager
from django.contrib.auth.models import AbstractBaseUser, PermissionsMixin
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from billing.ledger import LedgerEntry
from billing.windows import KeyWindow, OrganizationWindow, PlanChange, PlanOverride, PlanWindow, UsageDay

__all__ = [
    "ApiKey",
    "KeyWindow",
    "LedgerEntry",
    "Organization",
    "OrganizationWindow",
    "Plan",
    "PlanChange",
    "PlanOverride",
    "PlanWindow",
    "UsageDay",
    "User",
]


class Plan(models.Model):
    """What an operator sells: caps, priority, prices, and any number of windows (PlanWindow)."""

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=64)
    is_default = models.BooleanField(default=False, help_text=_("Given to new users."))
    is_offered = models.BooleanField(
        default=True, help_text=_("Named to people on a lower band who have used up what their plan gives.")
    )
    band = models.SmallIntegerField(default=0, help_text=_("Priority band; a higher one is served first."))
    reserved_share = models.FloatField(
        default=0,
        validators=[MinValueValidator(0.0), MaxValueValidator(1.0)],
        help_text=_("Share of a worker's slots that lower bands never get, 0 to 1."),
    )
    weight = models.FloatField(default=1, validators=[MinValueValidator(0.01), MaxValueValidator(1000.0)])
    max_wait_boost_s = models.FloatField(
        default=20,
        validators=[MinValueValidator(0.0), MaxValueValidator(86_400.0)],
        help_text=_("Seconds of waiting after which a request is aged."),
    )
    max_concurrent = models.PositiveIntegerField(
        default=4, validators=[MinValueValidator(1)], help_text=_("Generations of one user at a time.")
    )
    max_output_tokens = models.PositiveIntegerField(default=4096, help_text=_("Tokens that one answer may have."))
    max_context_tokens = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("Input and output of one answer together; empty: what the model reads."),
    )
    requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text=_("Of one person; empty: any number.")
    )
    allowed_models = models.ManyToManyField(
        "inference.ServedModel", blank=True, related_name="plans", help_text=_("None chosen: all of them.")
    )
    queue_depth = models.PositiveIntegerField(
        null=True, blank=True, help_text=_("Requests that may wait for a model; empty: as many as the site lets.")
    )
    max_wait_s = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1.0), MaxValueValidator(86_400.0)],
        help_text=_("Seconds of waiting after which a request is given up; empty: MAX_WAIT."),
    )
    stand_in = models.ForeignKey(
        "inference.ServedModel",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="stands_in_for",
        limit_choices_to={"is_enabled": True},
        help_text=_("A smaller model that answers while the one asked for is too busy, and says so; empty: none."),
    )
    stand_in_after_s = models.FloatField(
        default=10,
        validators=[MinValueValidator(0.0), MaxValueValidator(86_400.0)],
        help_text=_("Estimated seconds of waiting from which on a model is too busy; without workers it always is."),
    )
    price_multiplier = models.DecimalField(
        max_digits=8,
        decimal_places=4,
        default=Decimal(1),
        validators=[MinValueValidator(Decimal(0))],
        help_text=_("Times the model's price."),
    )

    class Meta:
        ordering = ("band", "slug")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["is_default"], condition=models.Q(is_default=True), name="plan_one_default"
            ),
            models.CheckConstraint(
                condition=models.Q(reserved_share__gte=0, reserved_share__lte=1), name="plan_reserved_share"
            ),
            # PostgreSQL's NaN is greater than every number, so that the upper bounds keep it out.
            models.CheckConstraint(condition=models.Q(weight__gte=0.01, weight__lte=1000), name="plan_weight"),
            models.CheckConstraint(
                condition=models.Q(max_wait_boost_s__gte=0, max_wait_boost_s__lte=86_400), name="plan_max_wait_boost"
            ),
            models.CheckConstraint(
                condition=models.Q(max_wait_s__isnull=True) | models.Q(max_wait_s__gte=1, max_wait_s__lte=86_400),
                name="plan_max_wait",
            ),
            models.CheckConstraint(
                condition=models.Q(stand_in_after_s__gte=0, stand_in_after_s__lte=86_400), name="plan_stand_in_after"
            ),
            models.CheckConstraint(
                condition=models.Q(price_multiplier__gte=0, price_multiplier__lt=10_000), name="plan_price_multiplier"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raises ValidationError when the bands' reserved shares together are more than there is."""
        super().clean()
        shares = {self.band: self.reserved_share}
        for band, share in Plan.objects.exclude(pk=self.pk).values_list("band", "reserved_share"):
            shares[band] = max(share, shares.get(band, 0))
        total = sum(shares.values())
        if total > 1 + 1e-9:
            said = _("With this, the bands reserve %(total).0f %% of the slots together: at most 100 %% are there.")
            raise ValidationError({"reserved_share": ValidationError(said, params={"total": 100 * total})})


class Organization(models.Model):
    """The tenant: members share a prefix cache and, by default, everyone has one of their own."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=255)
    plan = models.ForeignKey(
        Plan,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="organizations",
        help_text=_("Of the members who have no plan of their own."),
    )
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.name


class UserManager(BaseUserManager["User"]):
    """Accounts are known by their e-mail address."""

    def get_by_natural_key(self, username: str | None) -> "User":
        return self.get(email__iexact=username)

    def create_superuser(self, email: str, password: str, **fields: Any) -> "User":
        """For `manage.py createsuperuser`."""
        from billing.operations import create_user

        return create_user(email=email, password=password, is_superuser=True)


PLAN_ROWS = ("plan", "organization__plan", "override__plan")


class User(AbstractBaseUser, PermissionsMixin):
    """A person who chats; belongs to one organization and is on one plan."""

    class Theme(models.TextChoices):
        SYSTEM = "system", _("Like the system")
        LIGHT = "light", _("Light")
        DARK = "dark", _("Dark")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = models.EmailField(
        unique=True,
        error_messages={"unique": _("There is an account with this address.")},
        help_text=_("Kept in lower case: addresses that differ in case only are one."),
    )
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="members")
    owner_of = models.ForeignKey(
        Organization,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="owners",
        help_text=_("Sees what its members use, while a member of it."),
    )
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="users")
    plan_is_own = models.BooleanField(default=False, help_text=_("Holds even where the organization has another plan."))
    theme = models.CharField(max_length=8, choices=Theme, default=Theme.SYSTEM)
    time_zone = models.CharField(max_length=64, default="UTC", help_text=_("An IANA name, such as Europe/Zurich."))
    is_active = models.BooleanField(default=True)
    is_staff = models.BooleanField(default=False)
    date_joined = models.DateTimeField(default=timezone.now)

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []
    objects: ClassVar[UserManager] = UserManager()

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(email=Lower("email")), name="user_email_lower_case"),
        ]

    def __str__(self) -> str:
        return self.email

    def clean(self) -> None:
        """Before the checks for uniqueness: forms bring addresses in any case."""
        self.email = self.email.lower()
        super().clean()

    @property
    def current_plan(self) -> Plan:
        """The plan that holds now: an override's, else the organization's for who has none of their own, else theirs.

        Four rows: select_related(*PLAN_ROWS) loads them with the user.
        """
        if self._override is not None and self._override.until > timezone.now():
            return self._override.plan
        if not self.plan_is_own and self.organization.plan is not None:
            return self.organization.plan
        return self.plan

    @cached_property
    def _override(self) -> PlanOverride | None:
        return getattr(self, "override", None)  # Django asks again and again where there is none

    @property
    def is_owner(self) -> bool:
        """Whether they see the usage of their organization; who was moved to another one is not its owner."""
        return self.owner_of_id is not None and self.owner_of_id == self.organization_id

    @property
    def zone(self) -> zoneinfo.ZoneInfo:
        """Their time zone; UTC where this machine does not know it."""
        try:
            return zoneinfo.ZoneInfo(self.time_zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            return zoneinfo.ZoneInfo("UTC")


class ApiKey(models.Model):
    """A program's credential. Only its SHA-256 is stored; the key itself is shown once."""

    PREFIX: ClassVar = "sk-chat-"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    hint = models.CharField(max_length=24, help_text=_("How the key begins."))
    digest = models.BinaryField(max_length=32, unique=True)
    created_at = models.DateTimeField(default=timezone.now)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.hint}… {self.name}"

    @staticmethod
    def digest_of(key: str) -> bytes:
        """What is stored of a key. A fast hash suffices: keys carry 256 random bits."""
        return hashlib.sha256(key.encode()).digest()

    @classmethod
    def make_secret(cls) -> str:
        """A new key."""
        return cls.PREFIX + secrets.token_urlsafe(32)
