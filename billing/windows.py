"""How much may be used in how long a time, per plan, API key and organization; and which plan holds until when."""

import uuid
from typing import ClassVar

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

LONGEST_S = 366 * 86_400
MOST = 10**12


class LimitWindow(models.Model):
    """At most `amount` requests or tokens (input + output) in any `seconds`: a window that slides exactly."""

    class Kind(models.TextChoices):
        REQUESTS = "requests", _("requests")
        TOKENS = "tokens", _("tokens")

    kind = models.CharField(max_length=8, choices=Kind)
    amount = models.BigIntegerField(
        validators=[MinValueValidator(1), MaxValueValidator(MOST)],
        help_text=_("Requests, or tokens read and written together."),
    )
    seconds = models.PositiveIntegerField(
        validators=[MinValueValidator(1), MaxValueValidator(LONGEST_S)],
        help_text=_("Length of the window in seconds: 10800 is 3 hours, 86400 a day."),
    )

    class Meta:
        abstract = True
        ordering = ("seconds", "kind")

    def __str__(self) -> str:
        return f"{self.amount:,} {self.kind} / {self.seconds:,} s"


def _constraints(name: str, subject: str) -> list[models.BaseConstraint]:
    """What the database refuses whoever writes: zero and negative amounts and lengths, a window given twice."""
    possible = models.Q(amount__gte=1, amount__lte=MOST, seconds__gte=1, seconds__lte=LONGEST_S)
    return [
        models.UniqueConstraint(fields=[subject, "kind", "seconds"], name=f"{name}_once"),
        models.CheckConstraint(condition=possible & models.Q(kind__in=("requests", "tokens")), name=f"{name}_possible"),
    ]


class PlanWindow(LimitWindow):
    """What each person on a plan may use."""

    plan = models.ForeignKey("billing.Plan", on_delete=models.CASCADE, related_name="windows")

    class Meta(LimitWindow.Meta):
        constraints: ClassVar = _constraints("planwindow", "plan")


class OrganizationWindow(LimitWindow):
    """What the members of an organization may use together."""

    organization = models.ForeignKey("billing.Organization", on_delete=models.CASCADE, related_name="windows")

    class Meta(LimitWindow.Meta):
        constraints: ClassVar = _constraints("organizationwindow", "organization")


class KeyWindow(LimitWindow):
    """What one API key may use."""

    api_key = models.ForeignKey("billing.ApiKey", on_delete=models.CASCADE, related_name="windows")

    class Meta(LimitWindow.Meta):
        constraints: ClassVar = _constraints("keywindow", "api_key")


class PlanOverride(models.Model):
    """Another plan for one person, until a day; then the one before holds again by itself."""

    user = models.OneToOneField("billing.User", on_delete=models.CASCADE, related_name="override")
    plan = models.ForeignKey("billing.Plan", on_delete=models.PROTECT, related_name="overrides")
    until = models.DateTimeField(help_text=_("From then on it holds no more."))

    def __str__(self) -> str:
        return f"{self.plan} until {self.until:%Y-%m-%d %H:%M}"


class PlanChange(models.Model):
    """Which person or organization was put on which plan, when and by whom. The database refuses changes.

    Opaque ids without foreign keys: the history outlives the account.
    """

    user_id = models.UUIDField(null=True)
    organization_id = models.UUIDField(null=True)
    before = models.CharField(max_length=64, blank=True, default="", help_text=_("Slug of the plan that held before."))
    plan = models.CharField(
        max_length=64, blank=True, help_text=_("The plan's slug; empty: none of their own, or no override, any more.")
    )
    until = models.DateTimeField(null=True, help_text=_("Set for an override."))
    changed_by = models.CharField(max_length=254, help_text=_("E-mail of the operator, or the command."))
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-created_at",)
        indexes: ClassVar = [
            models.Index(fields=["user_id", "created_at"], name="planchange_user"),
            models.Index(fields=["organization_id", "created_at"], name="planchange_organization"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(user_id__isnull=True, organization_id__isnull=False)
                | models.Q(user_id__isnull=False, organization_id__isnull=True),
                name="planchange_of_one",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user_id or self.organization_id}: {self.before or '–'} → {self.plan or '–'}"


class UsageDay(models.Model):
    """The ledger summed by day (UTC), person, key, model and purpose; rebuilt to the same numbers at any time."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    day = models.DateField()
    user_id = models.UUIDField()
    organization_id = models.UUIDField()
    api_key_id = models.UUIDField(null=True)
    model = models.CharField(max_length=128)
    purpose = models.CharField(max_length=16)
    requests = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    cost_micro = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["day", "user_id", "organization_id", "api_key_id", "model", "purpose"],
                nulls_distinct=False,
                name="usageday_once",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["user_id", "day"], name="usageday_user"),
            models.Index(fields=["organization_id", "day"], name="usageday_organization"),
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.user_id} {self.model}"
