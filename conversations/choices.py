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
    """Every enabled model. None is `chosen`: the site's default one, else the first."""
    ready = Worker.objects.filter(model=OuterRef("pk"), state=Worker.State.READY, lease_until__gt=Now())
    found = list(ServedModel.objects.filter(is_enabled=True).annotate(is_ready=Exists(ready)))
    names = [model.name for model in found]
    if chosen not in names:
        chosen = next((model.name for model in found if model.is_default), names[0] if names else None)
    return [Choice(model.name, model.is_ready, model.name == chosen) for model in found]
