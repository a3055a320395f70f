"""The plans that the site ships with."""

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from billing.models import Plan
from billing.operations import create_user, default_plan


def test_four_plans_and_a_default(db: None) -> None:
    assert list(Plan.objects.values_list("slug", "band")) == [("free", 0), ("plus", 1), ("pro", 2), ("unlimited", 3)]
    assert default_plan().slug == "free"


@pytest.mark.django_db(transaction=True)
def test_migration_reverses_and_keeps_plans_in_use() -> None:
    create_user(email="user@example.org", password="tall-trees-7")
    try:
        MigrationExecutor(connection).migrate([("billing", "0001_initial")])
        assert [plan.slug for plan in Plan.objects.all()] == ["free"]
    finally:
        call_command("migrate", verbosity=0)
    assert Plan.objects.count() == 4
