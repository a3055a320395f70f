"""Four plans to start from; an operator edits them in the admin."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

PLANS = [
    {"slug": "free", "name": "Free", "band": 0, "is_default": True, "max_concurrent": 4, "max_output_tokens": 4096},
    {"slug": "plus", "name": "Plus", "band": 1, "reserved_share": 0.1, "max_concurrent": 8, "max_output_tokens": 8192},
    {"slug": "pro", "name": "Pro", "band": 2, "reserved_share": 0.15, "max_concurrent": 32, "max_output_tokens": 32768},
    {
        "slug": "unlimited",
        "name": "Unlimited",
        "band": 3,
        "reserved_share": 0.15,
        "max_concurrent": 10_000,
        "max_output_tokens": 1_000_000,
    },
]


def add(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    plans = apps.get_model("billing", "Plan")
    plans.objects.bulk_create([plans(**plan) for plan in PLANS], ignore_conflicts=True)


def remove(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    # A plan that someone is on stays: accounts are worth more than a clean reversal.
    apps.get_model("billing", "Plan").objects.filter(
        slug__in=[plan["slug"] for plan in PLANS], users__isnull=True
    ).delete()


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]

    operations = [migrations.RunPython(add, remove)]
