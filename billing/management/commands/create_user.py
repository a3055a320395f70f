"""`manage.py create_user EMAIL --password P [--admin]`, beside a running site."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from billing.management.site import running_site
from billing.operations import create_user


class Command(BaseCommand):
    help = "Make an account."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email")
        parser.add_argument("--password", required=True)
        parser.add_argument("--admin", action="store_true", help="may use the admin, and everything in it")

    def handle(self, *, email: str, password: str, admin: bool, **options: Any) -> None:
        with running_site():
            user = create_user(email=email, password=password, is_superuser=admin)
        self.stdout.write(f"Created {user.email}.")
