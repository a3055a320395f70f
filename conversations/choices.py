"""The models that a person may choose, for the composer's picker."""

from dataclasses import dataclass

from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from inference.models import ServedModel, Worker


@dataclass(frozen=True)
class Choice:
    """`is_ready`: a worker can answer now."""

    name: str
    is_ready: bool
    is_chosen: bool


def models_to_choose(chosen: str | None = None) -> list[Choice]:
    """Every enabled model. Without a `chosen` one: what inference.operations.find_model would take."""
    ready = Worker.objects.filter(model=OuterRef("pk"), state=Worker.State.READY, lease_until__gt=Now())
    found = list(ServedModel.objects.filter(is_enabled=True).annotate(is_ready=Exists(ready)))
    if chosen not in [model.name for model in found]:
        best = min(found, key=lambda model: (not model.is_ready, not model.is_default, model.name), default=None)
        chosen = best.name if best else None
    return [Choice(model.name, model.is_ready, model.name == chosen) for model in found]
