"""Celery's consumer, which finds its broker again soon.

Celery waits 2, 4, 6 ... 30 s between its attempts to connect, and has no setting for it: Valkey was back, and nobody
was answered for another 10 s (measured, after 20 and after 45 s). After 100 attempts a worker would end, see settings.
"""

from functools import partial
from typing import Any

from celery.worker.consumer import Consumer

PAUSE_S = 1.0


class PatientConsumer(Consumer):  # type: ignore[misc]
    """Tries once a second."""

    def ensure_connected(self, conn: Any) -> Any:
        """kombu's connection, connected."""
        pauses = {"interval_start": PAUSE_S, "interval_step": 0, "interval_max": PAUSE_S}
        conn.ensure_connection = partial(conn.ensure_connection, **pauses)
        return super().ensure_connected(conn)
