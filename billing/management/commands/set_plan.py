"""`manage.py set_plan EMAIL free|plus|pro|unlimited`, beside a running site."""

import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from billing.management.site import running_site
from billing.models import Plan, User
from billing.plans import override_plan, set_plan


class Command(BaseCommand):
    help = "Put an account on a plan, for good or for some days."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email")
        parser.add_argument("plan", help="a plan's slug: free, plus, pro, unlimited, or one of yours")
        parser.add_argument("--days", type=float, help="for so many days only; then the plan before holds again")

    def handle(self, *, email: str, plan: str, days: float | None, **options: Any) -> None:
        if days is not None and not 0 < days <= 36_500:
            raise CommandError("--days is a number greater than 0.")
        with running_site():
            user = User.objects.filter(email__iexact=email.strip()).first()
            if user is None:
                raise CommandError(f"There is no account with the address {email}.")
            chosen = Plan.objects.filter(slug=plan).first()
            if chosen is None:
                known = ", ".join(Plan.objects.values_list("slug", flat=True))
                raise CommandError(f"There is no plan {plan}; there are {known}.")
            if days is None:
                set_plan(user=user, plan=chosen, changed_by="manage.py set_plan")
            else:
                until = timezone.now() + datetime.timedelta(days=days)
                override_plan(user=user, plan=chosen, until=until, changed_by="manage.py set_plan")
        self.stdout.write(
            f"{user.email} is on {chosen.name}" + (f" until {until:%Y-%m-%d %H:%M} UTC." if days else ".")
        )
