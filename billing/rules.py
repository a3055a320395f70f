"""Which windows and models hold for whom: read from the database, kept in the process for a few seconds."""

from dataclasses import dataclass
from time import monotonic
from typing import Any
from uuid import UUID

from django.db.models import Value
from django.db.models.signals import m2m_changed, post_delete, post_save

from billing.limits import Window
from billing.models import KeyWindow, OrganizationWindow, Plan, PlanWindow

KEPT_S = 5.0
MOST = 10_000


@dataclass(frozen=True)
class Rules:
    """`models`: names of the allowed ones; empty: all."""

    windows: tuple[Window, ...]
    models: frozenset[str]

    def allows(self, model: str) -> bool:
        return not self.models or model in self.models


_kept: dict[tuple[int, UUID, UUID | None], tuple[float, Rules]] = {}


def rules_for(plan: Plan, organization_id: UUID, api_key_id: UUID | None) -> Rules:
    """What holds for a person on this plan, their organization and the key they use. At most KEPT_S old."""
    name = plan.pk, organization_id, api_key_id
    kept = _kept.get(name)
    if kept and kept[0] > monotonic():
        return kept[1]
    if len(_kept) >= MOST:
        _kept.clear()
    rules = _read(plan, organization_id, api_key_id)
    _kept[name] = monotonic() + KEPT_S, rules
    return rules


def _read(plan: Plan, organization_id: UUID, api_key_id: UUID | None) -> Rules:
    fields = ("holder", "kind", "amount", "seconds")
    rows = PlanWindow.objects.filter(plan=plan).annotate(holder=Value("user"))
    organization = OrganizationWindow.objects.filter(organization=organization_id).annotate(
        holder=Value("organization")
    )
    key = KeyWindow.objects.filter(api_key=api_key_id).annotate(holder=Value("api_key"))
    models = plan.allowed_models.annotate(holder=Value("model"), amount=Value(0), seconds=Value(0))
    found = rows.order_by().values_list(*fields).union(
        organization.order_by().values_list(*fields),
        key.order_by().values_list(*fields),
        models.order_by().values_list("holder", "name", "amount", "seconds"),
        all=True,
    )  # fmt: skip
    windows, names = [], set()
    for holder, kind, amount, seconds in found:
        if holder == "model":
            names.add(kind)
        else:
            windows.append(Window(holder, kind, amount, seconds))
    if plan.requests_per_minute:
        windows.append(Window("user", "requests", plan.requests_per_minute, 60))
    return Rules(tuple(windows), frozenset(names))


def forget_rules(**_: Any) -> None:
    """This process reads them anew; others do within KEPT_S."""
    _kept.clear()


for model in (Plan, PlanWindow, OrganizationWindow, KeyWindow):
    post_save.connect(forget_rules, sender=model, dispatch_uid=f"rules {model.__name__} saved")
    post_delete.connect(forget_rules, sender=model, dispatch_uid=f"rules {model.__name__} deleted")
m2m_changed.connect(forget_rules, sender=Plan.allowed_models.through, dispatch_uid="rules models changed")
