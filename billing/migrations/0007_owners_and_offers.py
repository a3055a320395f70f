"""Owners of organizations, who see their members' usage; plans that are named to people on lower ones."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps


def own(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Who is alone in an organization has made it by signing up."""
    organizations, users = apps.get_model("billing", "Organization"), apps.get_model("billing", "User")
    alone = organizations.objects.annotate(people=models.Count("members")).filter(people=1)
    users.objects.filter(organization__in=alone.values("pk")).update(owner_of=models.F("organization"))


class Migration(migrations.Migration):
    dependencies = [("billing", "0006_ledger")]

    operations = [
        migrations.AddField(
            model_name="plan",
            name="is_offered",
            field=models.BooleanField(
                default=True, help_text="Named to people on a lower band who have used up what their plan gives."
            ),
        ),
        migrations.AddField(
            model_name="user",
            name="owner_of",
            field=models.ForeignKey(
                blank=True,
                help_text="Sees what its members use, while a member of it.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="owners",
                to="billing.organization",
            ),
        ),
        migrations.RunPython(own, migrations.RunPython.noop),
    ]
