"""Tickets: Celery messages that wake one worker with a free slot. They name a model, never a job."""

import logging

from celery import current_app
from kombu.exceptions import OperationalError as BrokerError

log = logging.getLogger(__name__)

TICKET = "inference.ticket"


def queue_name(model: str) -> str:
    """The queue that a model's workers consume."""
    return f"gpu.{model}"


def send_tickets(model: str, count: int = 1) -> None:
    """Wake workers of a model. A hint: if the broker is away, hosts find the waiting rows themselves."""
    try:
        for _ in range(count):
            current_app.send_task(TICKET, queue=queue_name(model), retry=False, ignore_result=True)
    except (BrokerError, OSError, TimeoutError) as error:
        log.warning("ticket for %s lost: %r", model, error)
