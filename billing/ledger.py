"""What was used and what it cost: entries that nobody changes."""

from decimal import Decimal
from typing import ClassVar

from django.db import models
from django.utils import timezone


class LedgerEntry(models.Model):
    """One ended generation, booked in the transaction that ended it, or a correction. The database refuses changes.

    Subjects are opaque uuids without foreign keys, so that deleting a chat, a key or an account changes no
    sum. Money is in micro-units of the operator's currency, rounded half up per entry.
    """

    class Kind(models.TextChoices):
        USAGE = "usage"
        CORRECTION = "correction"

    kind = models.CharField(max_length=16, choices=Kind, default=Kind.USAGE)
    generation_id = models.UUIDField()
    user_id = models.UUIDField()
    organization_id = models.UUIDField()
    api_key_id = models.UUIDField(null=True)
    model = models.CharField(max_length=128)
    purpose = models.CharField(max_length=16)
    prompt_tokens = models.IntegerField()
    cached_tokens = models.IntegerField(default=0)
    completion_tokens = models.IntegerField()
    finish_reason = models.CharField(max_length=32)
    price_multiplier = models.DecimalField(max_digits=8, decimal_places=4, default=Decimal(1))
    cost_micro = models.BigIntegerField(default=0)
    note = models.CharField(max_length=255, blank=True, default="", help_text="Why it was corrected.")
    admitted_at = models.DateTimeField(null=True, help_text="Since when it counts in windows, by the counters' clock.")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "ledger entries"
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["generation_id"], condition=models.Q(kind="usage"), name="ledgerentry_one_usage"
            ),
            models.CheckConstraint(
                condition=~models.Q(kind="usage")
                | models.Q(prompt_tokens__gte=0, cached_tokens__gte=0, completion_tokens__gte=0),
                name="ledgerentry_usage_not_negative",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["user_id", "created_at"]),
            models.Index(fields=["organization_id", "created_at"]),
            models.Index(fields=["api_key_id", "created_at"], name="ledgerentry_key"),
            models.Index(fields=["created_at"], name="ledgerentry_time"),
            models.Index(fields=["generation_id"], name="ledgerentry_generation"),
        ]

    def __str__(self) -> str:
        return f"{self.generation_id}: {self.prompt_tokens}+{self.completion_tokens}"
