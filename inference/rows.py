"""Reads of generation rows for streams: what a reader is told comes from here."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Count, F, Window
from django.db.models.functions import Now, RowNumber

from inference.models import Generation, Worker
from inference.protocol import Event


@dataclass(frozen=True)
class Row:
    """A generation as a stream sees it."""

    id: UUID
    model: str
    status: str
    frames: int
    finish_reason: str | None
    error_code: str
    error_message: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    started: bool
    purged: bool

    @property
    def is_waiting(self) -> bool:
        return self.status == Generation.Status.WAITING

    @property
    def is_ended(self) -> bool:
        return self.finish_reason is not None

    def terminal_event(self) -> Event:
        """The stream's last event. Only for an ended row."""
        usage = {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        if self.status == Generation.Status.FAILED:
            data: dict[str, Any] = {"code": self.error_code, "message": self.error_message, "usage": usage}
            return Event("error", self.id, self.frames, data)
        return Event("done", self.id, self.frames, {"finish_reason": self.finish_reason, "usage": usage})


def row_of(generation: Generation) -> Row:
    """The Row of a loaded generation."""
    return Row(
        id=generation.pk,
        model=generation.model_id,
        status=generation.status,
        frames=generation.frames,
        finish_reason=generation.finish_reason,
        error_code=generation.error_code,
        error_message=generation.error_message,
        prompt_tokens=generation.prompt_tokens,
        cached_tokens=generation.cached_tokens,
        completion_tokens=generation.completion_tokens,
        started=generation.started_at is not None,
        purged=generation.purged_at is not None,
    )


def look(generations: Sequence[UUID]) -> dict[UUID, Row]:
    """The rows of many generations in one query; those that do not exist are missing."""
    found = Generation.objects.filter(pk__in=generations).defer("prompt", "text", "sampling")
    return {generation.pk: row_of(generation) for generation in found}


def kept_text(generation: UUID) -> str:
    """An ended generation's text, until it is purged."""
    return Generation.objects.filter(pk=generation).values_list("text", flat=True).first() or ""


def queue_places(generations: Sequence[UUID]) -> dict[UUID, dict[str, object]]:
    """`position` (1 = next), `eta_seconds` (None while nothing is known) and `workers` for waiting generations."""
    models = set(Generation.objects.filter(pk__in=generations).values_list("model_id", flat=True))
    places: dict[UUID, dict[str, object]] = {}
    for model in models:
        states = dict(
            Worker.objects.filter(model_id=model, lease_until__gt=Now())
            .exclude(state=Worker.State.GONE)
            .values_list("state")
            .annotate(n=Count("pk"))
        )
        workers = "ready" if Worker.State.READY in states else "starting" if states else "none"
        pace = seconds_per_start(model) if workers == "ready" else None
        order = (
            Generation.objects.filter(model_id=model, status=Generation.Status.WAITING)
            .annotate(place=Window(RowNumber(), order_by=[F("band").desc(), F("created_at")]))
            .values_list("pk", "place")[: settings.QUEUE_DEPTH + 1]
        )
        wanted = set(generations)
        for pk, place in order:
            if pk in wanted:
                eta = None if pace is None else round(pace * place, 1)
                places[pk] = {"position": place, "eta_seconds": eta, "workers": workers}
    return places


def seconds_per_start(model: str) -> float | None:
    """Mean seconds between starts over the last minute; None when nothing started."""
    starts = Generation.objects.filter(model_id=model, started_at__gt=Now() - timedelta(minutes=1)).count()
    return 60 / starts if starts else None
