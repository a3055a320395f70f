"""Operator's pages for conversations: that they exist. What they say takes a permission of its own."""

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join

from billing.admin_parts import ReadOnlyAdmin, link, list_link
from conversations.models import Conversation
from inference.models import Generation

READ = "content"  # ?content=1 on a conversation's page
MOST_MESSAGES = 500


@admin.register(Conversation)
class ConversationAdmin(ReadOnlyAdmin):
    """Whoever may (conversations.view_content) reads contents on request, and that is logged."""

    list_display = ("id", "user_link", "model_version", "message_count", "is_archived", "created_at", "updated_at")
    list_filter = ("model_version", "is_archived", "created_at", "updated_at")
    list_select_related = ("user",)
    search_fields = ("=id", "user__email", "=user__id")
    date_hierarchy = "created_at"
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Conversation]:
        rows: QuerySet[Conversation] = super().get_queryset(request)
        return rows.annotate(messages_=Count("messages"))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        fields = [
            "id", "user_link", "model_version", "message_count", "generations", "is_archived", "created_at",
            "updated_at",
        ]  # fmt: skip
        if READ in request.GET:
            return [*fields, "title", "system_prompt", "transcript"]
        return [*fields, "read"] if _may_read(request) else fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        return self.get_fields(request, obj)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if READ in request.GET:
            if not _may_read(request):
                raise PermissionDenied
            conversation = self.get_object(request, object_id)
            if conversation is not None:
                self.log_change(request, conversation, "Read what is written.")
        return super().change_view(request, object_id, form_url, extra_context)

    @admin.display(description="messages", ordering="messages_")
    def message_count(self, conversation: Conversation) -> int:
        count: int = conversation.messages_  # type: ignore[attr-defined]
        return count

    @admin.display(description="user", ordering="user__email")
    def user_link(self, conversation: Conversation) -> str:
        return link(conversation.user)

    @admin.display
    def generations(self, conversation: Conversation) -> str:
        return list_link(Generation, "generations", affinity__exact=conversation.pk)

    @admin.display(description="content")
    def read(self, conversation: Conversation) -> str:
        return format_html('<a href="?{}=1">Read what is written (this is logged)</a>', READ)

    @admin.display
    def transcript(self, conversation: Conversation) -> str:
        messages = conversation.messages.values_list("sender_role", "content")[:MOST_MESSAGES]
        return format_html_join("", "<h3>{}</h3><pre>{}</pre>", messages)


def _may_read(request: HttpRequest) -> bool:
    return bool(request.user.has_perm("conversations.view_content"))
