"""Operator's pages for conversations: that they exist, not what they say."""

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest

from billing.admin import ReadOnlyAdmin
from conversations.models import Conversation


@admin.register(Conversation)
class ConversationAdmin(ReadOnlyAdmin):
    list_display = ("id", "user", "model_version", "message_count", "is_archived", "created_at", "updated_at")
    list_filter = ("model_version", "is_archived")
    list_select_related = ("user",)
    search_fields = ("id", "user__email", "user__id")
    exclude = ("title", "system_prompt")
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Conversation]:
        rows: QuerySet[Conversation] = super().get_queryset(request)
        return rows.annotate(messages_=Count("messages"))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Conversation | None:
        """Without its title, which is people's text and would head the page."""
        found: Conversation | None = super().get_object(request, object_id, from_field)
        if found:
            found.title = ""
        return found

    @admin.display(description="messages")
    def message_count(self, conversation: Conversation) -> int:
        count: int = conversation.messages_  # type: ignore[attr-defined]
        return count
