"""The plans that the site ships with."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing import counters
from billing.models import Organization, Plan, PlanChange, PlanOverride, PlanWindow, User
from billing.operations import create_user, default_plan
from billing.plans import override_plan, set_plan
from inference.models import ServedModel
from inference.operations import register_model


@pytest.fixture
def admin(db: None) -> Client:
    client = Client()
    client.force_login(create_user(email="root@example.org", password="tall-trees-7", is_superuser=True))
    return client


def test_four_plans_and_a_default(db: None) -> None:
    assert list(Plan.objects.values_list("slug", "band")) == [("free", 0), ("plus", 1), ("pro", 2), ("unlimited", 3)]
    assert default_plan().slug == "free"


@pytest.mark.django_db(transaction=True)
def test_migration_reverses_and_keeps_plans_in_use() -> None:
    create_user(email="user@example.org", password="tall-trees-7")
    try:
        MigrationExecutor(connection).migrate([("billing", "0001_initial")])
        assert list(Plan.objects.values_list("slug", flat=True)) == ["free"]
    finally:
        call_command("migrate", verbosity=0)
        counters.distrust(int(counters.current_epoch() or 0))  # the sequence of epochs was made anew
    assert Plan.objects.count() == 4 and PlanWindow.objects.count() == 6


def windows_of(slug: str) -> set[tuple[str, int, int]]:
    return set(PlanWindow.objects.filter(plan__slug=slug).values_list("kind", "amount", "seconds"))


def test_shipped_windows(db: None) -> None:
    assert windows_of("free") == {("requests", 20, 3 * 3600), ("tokens", 40_000, 86_400)}
    assert len(windows_of("plus")) == len(windows_of("pro")) == 2
    assert windows_of("unlimited") == set()


@pytest.mark.parametrize(
    "field",
    [
        {"kind": "tokens", "amount": 0, "seconds": 60},
        {"kind": "tokens", "amount": -1, "seconds": 60},
        {"kind": "tokens", "amount": 1, "seconds": 0},
        {"kind": "hours", "amount": 1, "seconds": 60},
    ],
)
def test_the_database_refuses_impossible_windows(db: None, field: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        PlanWindow.objects.create(plan=default_plan(), **field)


@pytest.mark.parametrize(
    ("field", "value"),
    [("reserved_share", 1.5), ("reserved_share", "NaN"), ("weight", 0), ("weight", "NaN"), ("max_wait_s", "NaN")],
)
def test_the_database_refuses_impossible_plans(db: None, field: str, value: object) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Plan.objects.filter(slug="free").update(**{field: float(str(value))})


def test_an_organizations_plan_holds_for_members_without_their_own(user: User) -> None:
    plus, pro, unlimited = (Plan.objects.get(slug=slug) for slug in ("plus", "pro", "unlimited"))
    Organization.objects.filter(pk=user.organization_id).update(plan=plus)
    assert User.objects.get().current_plan == plus
    set_plan(user=user, plan=pro, changed_by="test")
    assert User.objects.get().current_plan == pro
    override_plan(user=user, plan=unlimited, until=timezone.now() + timedelta(hours=1), changed_by="test")
    assert User.objects.get().current_plan == unlimited
    PlanOverride.objects.update(until=timezone.now())
    assert User.objects.get().current_plan == pro
    assert list(PlanChange.objects.values_list("plan", flat=True)) == ["unlimited", "pro"]


def test_set_plan_command(user: User) -> None:
    call_command("set_plan", "User@example.org", "plus")
    assert User.objects.get().current_plan.slug == "plus"
    call_command("set_plan", "user@example.org", "pro", "--days", "2")
    assert User.objects.get().current_plan.slug == "pro"
    with pytest.raises(CommandError, match="There is no plan gold; there are free, plus, pro, unlimited"):
        call_command("set_plan", "user@example.org", "gold")


def plan_form(client: Client, **changed: object) -> Any:
    """Save the Plus plan in the admin with these fields; its response."""
    plus = Plan.objects.get(slug="plus")
    page = reverse("admin:billing_plan_change", args=[plus.pk])
    shown = client.get(page).context
    fields = {name: value for name, value in shown["adminform"].form.initial.items() if value not in (None, False)}
    fields |= {"windows-TOTAL_FORMS": "1", "windows-INITIAL_FORMS": "0", "allowed_models": []} | changed
    return client.post(page, fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"windows-0-kind": "tokens", "windows-0-amount": "-5", "windows-0-seconds": "60"},
            "greater than or equal to 1",
        ),
        ({"windows-0-kind": "tokens", "windows-0-amount": "5", "windows-0-seconds": "0"}, "greater than or equal to 1"),
        ({"windows-0-kind": "tokens", "windows-0-amount": "NaN", "windows-0-seconds": "60"}, "Enter a whole number"),
        ({"reserved_share": "1.1"}, "less than or equal to 1"),
        ({"reserved_share": "NaN"}, "Enter a number"),
        ({"reserved_share": "0.9"}, "reserve 120 % of the slots"),
        ({"weight": "-1"}, "greater than or equal to 0.01"),
        ({"price_multiplier": "NaN"}, "Enter a number"),
        ({"max_context_tokens": "0"}, "greater than or equal to 1"),
        ({"max_concurrent": "0"}, "greater than or equal to 1"),
    ],
)
def test_the_form_refuses_what_is_impossible(admin: Client, fields: dict[str, str], reason: str) -> None:
    page = plan_form(admin, **fields)
    assert page.status_code == 200 and reason in page.content.decode()


def test_the_form_adds_a_window(admin: Client) -> None:
    PlanWindow.objects.all().delete()
    given = {"windows-0-kind": "tokens", "windows-0-amount": "5", "windows-0-seconds": "60"}
    assert plan_form(admin, **given).status_code == 302
    assert windows_of("plus") == {("tokens", 5, 60)}


def history() -> list[tuple[str, str, str]]:
    """(before, plan, by whom), the latest first."""
    return list(PlanChange.objects.values_list("before", "plan", "changed_by"))


BY = "root@example.org"


def test_an_action_in_the_list_sets_a_plan(admin: Client, user: User) -> None:
    fields = {"action": "set_plan_pro", "_selected_action": [str(user.pk)]}
    assert admin.post(reverse("admin:billing_user_changelist"), fields).status_code == 302
    assert User.objects.get(pk=user.pk).current_plan.slug == "pro"
    assert history() == [("free", "pro", BY)]
    assert LogEntry.objects.get().change_message == "Put on plan pro."


def test_an_action_sets_the_plan_of_an_organization(admin: Client, user: User) -> None:
    fields = {"action": "set_plan_plus", "_selected_action": [str(user.organization_id)]}
    assert admin.post(reverse("admin:billing_organization_changelist"), fields).status_code == 302
    assert User.objects.get(pk=user.pk).current_plan.slug == "plus"
    assert history() == [("", "plus", BY)]
    assert PlanChange.objects.get().organization_id == user.organization_id
    page = admin.get(reverse("admin:billing_planchange_changelist")).content.decode()
    assert user.organization.name in page


def test_a_button_on_the_page_sets_a_plan_for_good_or_for_days(admin: Client, user: User) -> None:
    page = reverse("admin:billing_user_change", args=[user.pk])
    assert b'value="pro">Pro</button>' in admin.get(page).content
    act = reverse("admin:billing_user_set_plan", args=[user.pk])
    assert admin.post(act, {"plan": "plus", "days": ""}).status_code == 302
    admin.post(act, {"plan": "pro", "days": "3"})
    found = User.objects.get(pk=user.pk)
    assert (found.plan.slug, found.current_plan.slug) == ("plus", "pro")
    assert history() == [("plus", "pro", BY), ("free", "plus", BY)]
    until = PlanChange.objects.all()[0].until
    assert until is not None and timedelta(days=2.9) < until - timezone.now() < timedelta(days=3.1)


@pytest.mark.parametrize(
    "fields",
    [{"plan": "gold"}, {"plan": "\0"}, {}, *({"plan": "pro", "days": days} for days in ("0", "-1", "x", "1e9"))],
)
def test_what_makes_no_sense_is_told_so(admin: Client, user: User, fields: dict[str, str]) -> None:
    act = reverse("admin:billing_user_set_plan", args=[user.pk])
    answer = admin.post(act, fields, follow=True)
    assert answer.status_code == 200 and b'class="error"' in answer.content
    assert history() == [] and User.objects.get(pk=user.pk).current_plan.slug == "free"


def test_only_who_may_change_people_sets_their_plan(user: User, stranger: User) -> None:
    User.objects.filter(pk=stranger.pk).update(is_staff=True)
    client = Client()
    client.force_login(stranger)
    for kind, target in (("user", user), ("organization", user.organization)):
        assert (
            client.post(reverse(f"admin:billing_{kind}_set_plan", args=[target.pk]), {"plan": "pro"}).status_code == 403
        )
    stranger.user_permissions.set(Permission.objects.filter(codename__in=("change_user", "view_user")))
    act = reverse("admin:billing_user_set_plan", args=[user.pk])
    assert client.get(act).status_code == 405
    assert client.post(act, {"plan": "pro"}).status_code == 302
    assert client.post(reverse("admin:billing_user_set_plan", args=["x"]), {"plan": "pro"}).status_code == 403
    assert [plan for _, plan, _ in history()] == ["pro"]


def test_the_forms_write_history(admin: Client, user: User) -> None:
    pro = Plan.objects.get(slug="pro")
    page = reverse("admin:billing_organization_change", args=[user.organization_id])
    forms = {"windows-TOTAL_FORMS": "0", "windows-INITIAL_FORMS": "0"}
    assert admin.post(page, {"name": "Firm", "plan": pro.pk, **forms}).status_code == 302
    assert admin.post(page, {"name": "Firm", "plan": "", **forms}).status_code == 302
    assert history() == [("pro", "", BY), ("", "pro", BY)]


def test_the_history_is_append_only(user: User) -> None:
    set_plan(user=user, plan=Plan.objects.get(slug="pro"), changed_by="x")
    for act in (lambda: PlanChange.objects.update(plan="free"), lambda: PlanChange.objects.all().delete()):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            act()
    assert history() == [("free", "pro", "x")]


@pytest.mark.parametrize(
    ("allowed", "stand_in", "reason"),
    [
        (("large",), "small", "does not allow this model"),
        (("small",), "small", "no other model"),
        ((), "off", "not one of the available choices"),
        ((), "missing", "not one of the available choices"),
        ((), "small", ""),
        (("large", "small"), "small", ""),
    ],
)
def test_a_stand_in_must_be_able_to_stand_in(
    admin: Client, allowed: tuple[str, ...], stand_in: str, reason: str
) -> None:
    for name in ("large", "small", "off"):
        register_model(name=name, engine="echo", context_length=100)
    ServedModel.objects.filter(pk="off").update(is_enabled=False)
    page = plan_form(admin, allowed_models=list(allowed), stand_in=stand_in, **{"windows-TOTAL_FORMS": "0"})
    assert page.status_code == (200 if reason else 302)
    assert not reason or reason in page.content.decode()
    assert Plan.objects.get(slug="plus").stand_in_id == (None if reason else stand_in)
