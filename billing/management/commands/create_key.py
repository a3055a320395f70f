"""`manage.py create_key EMAIL [--name N]`, beside a running site: prints the new API key and nothing else."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.management.site import running_site
from billing.models import User
from billing.operations import issue_key


class Command(BaseCommand):
    help = "Make an API key for an account and print it."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email")
        parser.add_argument("--name", default="command line", help="what the account's list of keys calls it")

    def handle(self, *, email: str, name: str, **options: Any) -> None:
        with running_site():
            user = User.objects.filter(email__iexact=email.strip(), is_active=True).first()
            if user is None:
                raise CommandError(f"There is no active account with the address {email}.")
            _, secret = issue_key(user=user, name=name)
        self.stdout.write(secret)
