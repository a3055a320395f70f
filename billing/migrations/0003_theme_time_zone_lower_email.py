"""Theme and time zone; e-mail addresses in lower case, so that two differ in more than case."""

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps
from django.db.models.functions import Lower


def lower(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Two accounts that differ in case only end the migration: an operator must say which one stays."""
    apps.get_model("billing", "User").objects.exclude(email=Lower("email")).update(email=Lower("email"))


class Migration(migrations.Migration):
    dependencies = [("billing", "0002_plans")]

    operations = [
        migrations.AddField(
            model_name="user",
            name="theme",
            field=models.CharField(
                choices=[("system", "Like the system"), ("light", "Light"), ("dark", "Dark")],
                default="system",
                max_length=8,
            ),
        ),
        migrations.AddField(
            model_name="user",
            name="time_zone",
            field=models.CharField(
                default="UTC", help_text="An IANA name, such as Europe/Zurich.", max_length=64
            ),
        ),
        migrations.AlterField(
            model_name="user",
            name="email",
            field=models.EmailField(
                error_messages={"unique": "There is an account with this address."},
                help_text="Kept in lower case: addresses that differ in case only are one.",
                max_length=254,
                unique=True,
            ),
        ),
        migrations.RunPython(lower, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name="user",
            constraint=models.CheckConstraint(
                condition=models.Q(("email", Lower("email"))), name="user_email_lower_case"
            ),
        ),
    ]
