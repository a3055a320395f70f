"""What the side worker does on the beat."""

import datetime

from celery import shared_task
from django.utils import timezone

from billing.usage import roll_up


@shared_task(name="billing.roll_up_usage")
def roll_up_usage() -> int:
    """Sum the ledger of today and yesterday (UTC) anew."""
    today = timezone.now().astimezone(datetime.UTC).date()
    return roll_up(today - datetime.timedelta(days=1), today)
