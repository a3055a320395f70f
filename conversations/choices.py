"""The models that a person may choose: in the composer's picker and in the native API."""

from dataclasses import dataclass
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from billing.models import User
from inference.models import Worker
from inference.operations import models_for


@dataclass(frozen=True)
class Choice:
    """`is_ready`: a worker can answer now. `is_allowed`: the chat may go on with it."""

    name: str
    is_ready: bool
    is_chosen: bool
    is_allowed: bool = True


def models_with_state(user: User) -> QuerySet[Any]:
    """The models of the user's plan, each with `is_ready`."""
    ready = Worker.objects.filter(model=OuterRef("pk"), state=Worker.State.READY, lease_until__gt=Now())
    return models_for(user).annotate(is_ready=Exists(ready))


def models_to_choose(user: User, chosen: str | None = None) -> list[Choice]:
    """What the user's plan includes. Without a `chosen` one: what inference.operations.find_model would take.

    A chat's model that is no longer to be had stands first, chosen, so that its reader sees why to take another.
    """
    found = list(models_with_state(user))
    gone = []
    if chosen is None:
        best = min(found, key=lambda model: (not model.is_ready, not model.is_default, model.name), default=None)
        chosen = best.name if best else None
    elif chosen not in [model.name for model in found]:
        gone = [Choice(chosen, is_ready=False, is_chosen=True, is_allowed=False)]
    return gone + [Choice(model.name, model.is_ready, model.name == chosen) for model in found]
