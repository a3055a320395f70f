"""Operator's pages for models, workers and generations. What people write is not shown."""

from django.contrib import admin

from billing.admin import AdminBase, ReadOnlyAdmin
from inference.models import Generation, ServedModel, Worker


@admin.register(ServedModel)
class ServedModelAdmin(AdminBase):
    list_display = (
        "name", "engine", "is_enabled", "is_default", "context_length", "max_output_tokens", "price_prompt_micro",
        "price_completion_micro",
    )  # fmt: skip
    list_filter = ("engine", "is_enabled")
    search_fields = ("name",)


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = (
        "name",
        "model",
        "state",
        "running",
        "slots",
        "kv_usage",
        "host",
        "pid",
        "lease_until",
        "started_at",
    )
    list_filter = ("state", "model")
    search_fields = ("name", "host")


@admin.register(Generation)
class GenerationAdmin(ReadOnlyAdmin):
    list_display = (
        "id", "user", "model", "purpose", "status", "finish_reason", "band", "attempt", "prompt_tokens",
        "completion_tokens", "worker", "created_at", "started_at", "finished_at", "error_code",
    )  # fmt: skip
    list_filter = ("status", "finish_reason", "model", "purpose", "band")
    list_select_related = ("user", "worker")
    search_fields = ("id", "user__email", "user__id", "api_key_id", "affinity")
    exclude = ("prompt", "text")
    show_full_result_count = False
