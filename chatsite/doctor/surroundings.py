"""Checks of what the site stands on: settings, stores, schema."""

from django.core import checks
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from chatsite.doctor.findings import Finding


def system_checks() -> list[Finding]:
    """Django's checks and ours (chatsite.checks), those that ask the stores included."""
    return [
        Finding(
            check=str(message.id),
            what=str(message.msg),
            advice=str(message.hint or "Change the setting that it names."),
            subjects=(),
            is_problem=message.level >= checks.ERROR,
        )
        for message in checks.run_checks(databases=["default"])
        if message.level >= checks.WARNING and not message.is_silenced()
    ]


def migrations() -> list[Finding]:
    """Migrations that the database lacks."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    names = tuple(f"{migration.app_label}.{migration.name}" for migration, _ in plan)
    if not names:
        return []
    what = "The database lacks migrations of this version."
    return [Finding("migrations-missing", what, "Run `manage.py migrate`.", names)]
