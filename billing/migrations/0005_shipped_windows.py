"""What the shipped plans allow; people who were moved off the default plan keep theirs as their own."""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

HOUR, DAY = 3600, 86_400
WINDOWS = {
    "free": [("requests", 20, 3 * HOUR), ("tokens", 40_000, DAY)],
    "plus": [("requests", 200, 3 * HOUR), ("tokens", 1_000_000, DAY)],
    "pro": [("requests", 2_000, 3 * HOUR), ("tokens", 10_000_000, DAY)],
    "unlimited": [],
}
PER_MINUTE = {"plus": 60, "pro": 300}


def add(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    plans, windows = apps.get_model("billing", "Plan"), apps.get_model("billing", "PlanWindow")
    for plan in plans.objects.filter(slug__in=WINDOWS):
        windows.objects.bulk_create(
            [windows(plan=plan, kind=kind, amount=amount, seconds=s) for kind, amount, s in WINDOWS[plan.slug]],
            ignore_conflicts=True,
        )
    for slug, amount in PER_MINUTE.items():
        plans.objects.filter(slug=slug).update(requests_per_minute=amount)
    apps.get_model("billing", "User").objects.exclude(plan__is_default=True).update(plan_is_own=True)


def remove(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    apps.get_model("billing", "PlanWindow").objects.all().delete()
    apps.get_model("billing", "Plan").objects.update(requests_per_minute=None)


class Migration(migrations.Migration):
    dependencies = [("billing", "0004_limits")]

    operations = [migrations.RunPython(add, remove)]
