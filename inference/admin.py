"""Operator's pages for models, workers and generations. What people write is not shown."""

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _

from billing.admin_parts import AdminBase, OwnedRowsAdmin, ReadOnlyAdmin, link, list_link
from inference.models import Generation, ServedModel, Worker
from inference.operations import cancel, drain_worker
from inference.right_now import models_now, store_trouble, troubles


@admin.register(ServedModel)
class ServedModelAdmin(AdminBase):
    list_display = (
        "name", "engine", "is_enabled", "is_default", "context_length", "max_output_tokens", "price_prompt_micro",
        "price_completion_micro", "workers", "generations",
    )  # fmt: skip
    list_filter = ("engine", "is_enabled")
    search_fields = ("name",)
    readonly_fields = ("workers", "generations", "created_at")

    @admin.display
    def workers(self, model: ServedModel) -> str:
        return list_link(Worker, "workers", model__name__exact=model.pk)

    @admin.display
    def generations(self, model: ServedModel) -> str:
        return list_link(Generation, "generations", model__name__exact=model.pk)


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = (
        "name", "model_link", "state", "running", "slots", "kv_usage", "host", "pid", "lease_until", "started_at",
        "jobs",
    )  # fmt: skip
    list_filter = ("state", "model", "host")
    list_select_related = ("model",)
    search_fields = ("name", "host", "=id")
    actions = ("drain",)
    change_list_template = "admin/inference/worker/list.html"

    def get_urls(self) -> list[Any]:
        """Beside the rows, the queue and the workers at this moment."""
        return [path("now/", self.admin_site.admin_view(self.now), name="inference_worker_now"), *super().get_urls()]

    def now(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": _("Queue and workers right now"),
            "now": timezone.now(),
            "models": models_now(),
            "troubles": troubles(),
            "store_trouble": store_trouble(),
        }
        return render(request, "admin/inference/worker/now.html", context)

    @admin.display(description="model", ordering="model")
    def model_link(self, worker: Worker) -> str:
        return link(worker.model)

    @admin.display(description="generations")
    def jobs(self, worker: Worker) -> str:
        return list_link(Generation, "generations", worker__id__exact=worker.pk)

    @admin.action(description="Drain: end what runs, take nothing new, restart", permissions=["operate"])
    def drain(self, request: HttpRequest, workers: QuerySet[Worker]) -> None:
        for worker in workers:
            drain_worker(worker=worker)
            self.log_change(request, worker, "Drained.")
        self.message_user(request, f"{len(workers)} workers are asked to drain.")


@admin.register(Generation)
class GenerationAdmin(OwnedRowsAdmin):
    list_display = (
        "id", "user_link", "model_name", "instead_of", "purpose", "status", "finish_reason", "band", "attempt",
        "prompt_tokens", "completion_tokens", "worker_link", "created_at", "started_at", "finished_at", "error_code",
    )  # fmt: skip
    list_filter = ("status", "finish_reason", "model", "purpose", "band", "created_at")
    list_select_related = ("worker",)
    search_fields = ("=id", "user__email", "=user__id", "=api_key_id", "=affinity", "=organization_id")
    exclude = ("prompt", "text", "user", "worker", "model")
    readonly_fields = ("user_link", "worker_link", "model_name")
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    show_full_result_count = False
    actions = ("stop",)

    @admin.display(description="model", ordering="model_id")
    def model_name(self, generation: Generation) -> str:
        return generation.model_id

    @admin.display(description="worker")
    def worker_link(self, generation: Generation) -> str:
        return link(generation.worker)

    @admin.action(description="Stop: what was produced is kept and charged", permissions=["operate"])
    def stop(self, request: HttpRequest, generations: QuerySet[Generation]) -> None:
        for generation in generations:
            cancel(generation=generation)
            self.log_change(request, generation, "Stopped.")
        self.message_user(request, f"{len(generations)} generations are stopped.")
