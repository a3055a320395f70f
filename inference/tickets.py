"""Tickets: Celery messages that wake one worker with a free slot. They name a model, never a job.

A ticket may tell the band of what waits: who has no slot for it need not look. One may also be for a certain worker,
on the queue that Celery gives each (worker_direct).
"""

import functools
import logging
from typing import Any

from celery import current_app
from celery.utils.nodenames import worker_direct
from django.conf import settings
from kombu import pools
from kombu.exceptions import OperationalError as BrokerError

from inference import metrics

log = logging.getLogger(__name__)

TICKET = "inference.ticket"


def queue_name(model: str) -> str:
    """The queue that a model's workers consume."""
    return f"gpu.{model}"


def send_tickets(model: str, count: int = 1, band: int | None = None) -> None:
    """Wake workers of a model. A hint: if the broker is away, hosts find the waiting rows themselves."""
    _send(queue_name(model), count, {"band": band})


def call_worker(name: str, band: int | None = None) -> None:
    """Wake a certain worker, which starts as much as fits. A hint as well."""
    # By name: through the exchange of these queues, each send would read the list of all workers there ever were.
    _send(worker_direct(name).name, 1, {"band": band, "direct": True})


@functools.cache
def _producers() -> Any:
    """Connections for tickets alone. A worker's others wait for its broker (chatsite.celery): with those, a Valkey that
    hangs would hold up the keeper, which sends a ticket a second, until the leases lapse."""
    options = settings.CELERY_BROKER_TRANSPORT_OPTIONS
    return pools.producers[current_app.connection_for_write(transport_options=options)]


def _send(queue: str, count: int, arguments: dict[str, object]) -> None:
    try:
        with _producers().acquire(block=True, timeout=settings.HINT_TIMEOUT_S) as producer:
            for _ in range(count):
                current_app.send_task(
                    TICKET, kwargs=arguments, queue=queue, producer=producer, retry=False, ignore_result=True
                )
    except (BrokerError, OSError, TimeoutError) as error:
        metrics.hints_lost.labels("ticket").inc()
        log.warning("ticket for %s lost: %r", queue, error)
