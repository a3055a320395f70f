"""Restart the web processes of the local site one after the other: no answer is lost, no request fails."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from chatsite import SERVES
from chatsite.local_run import say
from chatsite.stores import StoreFailed
from chatsite.supervision import Control

START_S = 60.0


class Command(BaseCommand):
    help = "Restart the web processes of the site that runs in DATA_DIR, one after the other."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.RUN_FILE.exists():
            raise CommandError(f"No site runs in {settings.DATA_DIR}.")
        restarted = 0
        try:
            for name in Control(settings.DATA_DIR).restart("web", _serves, START_S):
                say(f"{name} serves again.")
                restarted += 1
        except StoreFailed as error:
            raise CommandError(str(error)) from None
        if restarted == 1:
            say("There is one web process: the site was away for a moment. WEB_PROCESSES=2 avoids that.")


def _serves(pid: int, log: Path) -> bool:
    return SERVES.format(pid=pid) in log.read_text(errors="replace")
