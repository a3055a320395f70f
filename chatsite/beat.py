"""Celery's clock, with what its probe asks for, and one line for a job that could not be sent."""

import logging
from time import monotonic
from typing import Any

from celery.beat import PersistentScheduler, SchedulingError

log = logging.getLogger(__name__)


class Scheduler(PersistentScheduler):  # type: ignore[misc]  # celery has no types
    """Sends what is due. While the broker is away nothing is sent; each job is due again soon."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.turned_at = monotonic()
        self.sent_at = 0.0
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        self.turned_at = monotonic()
        return super().tick(*args, **kwargs)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send one job. Celery would log two tracebacks for each that fails, every two seconds."""
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except SchedulingError as error:
            log.warning("%s not sent, it is when it is next due: %s", entry.task, error)
        else:
            self.sent_at = monotonic()
