"""`manage.py doctor`, beside a running site: what is wrong, and what to do about it. Exit status 1 if anything is."""

import sys
import time
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from billing.management.site import running_site
from chatsite.doctor.examination import examine
from chatsite.doctor.examination import repair as put_right
from chatsite.doctor.findings import as_json, as_text, confirmed, healthy

SECOND_LOOK_S = 2.5  # longer than workers take to renew and to take over


class Command(BaseCommand):
    help = "Look at the whole site for what must not be: stuck answers, books that differ, leftovers, settings."
    requires_system_checks = ()  # they are part of the examination

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="for programs")
        parser.add_argument("--days", type=float, default=2.0, help="how far back ended answers are looked at (2)")
        parser.add_argument("--repair", action="store_true", help="put right what the site itself would in time")

    def handle(self, *, days: float, repair: bool, **options: Any) -> None:
        since = timedelta(days=days)
        with running_site():
            findings = examine(since=since)
            if findings:  # what was only under way is gone at a second look
                time.sleep(SECOND_LOOK_S)
                findings = confirmed(findings, examine(since=since))
            if repair and (done := put_right(findings)):
                self.stderr.write(f"Repaired: {', '.join(done)}.")
                findings = confirmed(findings, examine(since=since))
        self.stdout.write(as_json(findings) if options["json"] else as_text(findings))
        if not healthy(findings):
            sys.exit(1)
