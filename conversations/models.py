"""What people see: conversations, and messages as a tree of turns."""

import uuid
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now
from django.utils import timezone

from billing.models import User
from inference.models import Generation


class Conversation(models.Model):
    """A chat of one user.

    `title` is empty until the first message, whose first words it then has, provisionally; a model (in the
    background) or the person gives the one that stays.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="conversations", db_index=False)
    title = models.CharField(max_length=255, blank=True, default="")
    title_is_provisional = models.BooleanField(default=False, db_default=False)
    model_version = models.CharField(max_length=128)
    system_prompt = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now, db_default=Now())
    updated_at = models.DateTimeField(default=timezone.now, db_default=Now())
    is_archived = models.BooleanField(default=False)

    class Meta:
        permissions: ClassVar = [("view_content", "Can read what people write")]
        indexes: ClassVar = [
            models.Index(fields=["user", "-updated_at"], name="conversation_user_updated"),
            models.Index(
                fields=["updated_at"],
                condition=models.Q(title_is_provisional=True),
                name="conversation_provisional",
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)


class Message(models.Model):
    """One turn. `parent` makes a tree: editing or regenerating adds a sibling, nothing is overwritten.

    An assistant message is created empty with its generation; `finish_reason` is NULL until that has ended.
    """

    class Role(models.TextChoices):
        SYSTEM = "system"
        USER = "user"
        ASSISTANT = "assistant"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="messages", db_index=False)
    parent = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="children")
    generation = models.OneToOneField(
        Generation, null=True, on_delete=models.SET_NULL, related_name="message", db_constraint=False
    )
    sender_role = models.CharField(max_length=16, choices=Role)
    content = models.TextField(blank=True, default="")
    token_count = models.PositiveIntegerField(default=0)
    omitted_turns = models.PositiveIntegerField(
        default=0, help_text="Older turns that did not fit the context of this answer."
    )
    model = models.CharField(max_length=128, blank=True, default="")
    instead_of = models.CharField(
        max_length=128, blank=True, default="", db_default="", help_text="The model asked for, if it was too busy."
    )
    finish_reason = models.CharField(max_length=32, null=True)
    created_at = models.DateTimeField(default=timezone.now, db_default=Now())

    class Meta:
        ordering = ("created_at", "id")
        indexes: ClassVar = [models.Index(fields=["conversation", "created_at"], name="message_conversation")]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(sender_role__in=("system", "user", "assistant")), name="message_sender_role"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.sender_role} {self.id}"
