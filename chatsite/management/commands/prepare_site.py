"""What a site needs before it serves, each step safe to repeat: schema, administrator, model, static files."""

import fcntl
import getpass
import secrets
import sys
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from billing.errors import Refusal
from billing.models import User
from billing.operations import create_user
from chatsite.local_run import say, step


class Command(BaseCommand):
    help = "Migrate, make the first administrator, fetch the model, collect static files."

    def handle(self, *args: Any, **options: Any) -> None:
        with step("Migrations"):
            call_command("migrate", interactive=False, verbosity=0)
        call_command("check", databases=["default"])
        if not User.objects.filter(is_superuser=True).exists():
            make_administrator()
        with step("Model"):
            call_command("prepare_model")
        with step("Static files"):
            collect_static_files()


def collect_static_files() -> None:
    """One at a time: sites that start side by side from one checkout share the folder."""
    settings.STATIC_ROOT.mkdir(exist_ok=True)
    with (settings.STATIC_ROOT / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        call_command("collectstatic", interactive=False, verbosity=0)


def make_administrator() -> None:
    """The first administrator: from the environment, asked for on a terminal, or made up and printed once."""
    asks = sys.stdin.isatty() and not (settings.ADMIN_EMAIL and settings.ADMIN_PASSWORD)
    while True:
        email = settings.ADMIN_EMAIL or (_ask_email() if asks else "") or "admin@localhost"
        given = settings.ADMIN_PASSWORD or (_ask_password() if asks else "")
        password = given or secrets.token_urlsafe(12)
        try:
            create_user(email=email, password=password, is_superuser=True)
        except Refusal as refusal:
            if not asks:
                raise CommandError(f"The first administrator cannot be made: {refusal.message}") from None
            say(refusal.message)
            continue
        say(f"Administrator: {email}" + ("" if given else f"   password (shown only now): {password}"))
        return


def _ask_email() -> str:
    try:
        return input("E-mail of the first administrator [admin@localhost]: ").strip()
    except EOFError:
        return ""


def _ask_password() -> str:
    try:
        return getpass.getpass("Password (empty: one is made up): ")
    except EOFError:
        return ""
