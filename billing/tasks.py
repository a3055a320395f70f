"""What the side worker does on the beat."""

import datetime

from celery import shared_task
from django.utils import timezone

from billing.usage import first_day, roll_up, rolled_until


@shared_task(name="billing.roll_up_usage")
def roll_up_usage() -> int:
    """Sum the ledger of today and yesterday (UTC) anew, and of all days since this was last done."""
    today = timezone.now().astimezone(datetime.UTC).date()
    yesterday = today - datetime.timedelta(days=1)
    return roll_up(min(yesterday, rolled_until() or first_day() or yesterday), today)
