"""Which windows and models hold for whom, and which plan gives more: read from the database, kept for a few seconds."""

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


@dataclass(frozen=True)
class Offer:
    """A plan that may be named to people; `amounts`: of its windows, by kind and seconds."""

    plan: str
    band: int
    amounts: dict[tuple[str, int], int]

    def amount(self, window: Window) -> int | None:
        """What it allows in such a window; None: it has none."""
        return self.amounts.get((window.kind, window.seconds))


_offers: list[tuple[float, list[Offer]]] = []


def better_plan(plan: Plan, window: Window) -> Offer | None:
    """The next plan above this one that is offered and gives more in a person's window of this kind and length."""
    if window.holder != "user":
        return None
    if not _offers or _offers[0][0] <= monotonic():
        _offers[:] = [(monotonic() + KEPT_S, _read_offers())]
    for offer in _offers[0][1]:
        amount = offer.amount(window)
        if offer.band > plan.band and (amount is None or amount > window.amount):
            return offer
    return None


def _read_offers() -> list[Offer]:
    """From the lowest band on."""
    found = []
    for plan in Plan.objects.filter(is_offered=True).order_by("band", "slug").prefetch_related("windows"):
        amounts = {(row.kind, row.seconds): row.amount for row in plan.windows.all()}
        if plan.requests_per_minute:
            minute = ("requests", 60)
            amounts[minute] = min(plan.requests_per_minute, amounts.get(minute, plan.requests_per_minute))
        found.append(Offer(plan.name, plan.band, amounts))
    return found


def forget_rules(**_: Any) -> None:
    """This process reads them anew; others do within KEPT_S."""
    _kept.clear()
    _offers.clear()


for model in (Plan, PlanWindow, OrganizationWindow, KeyWindow):
    post_save.connect(forget_rules, sender=model, dispatch_uid=f"rules {model.__name__} saved")
    post_delete.connect(forget_rules, sender=model, dispatch_uid=f"rules {model.__name__} deleted")
m2m_changed.connect(forget_rules, sender=Plan.allowed_models.through, dispatch_uid="rules models changed")
