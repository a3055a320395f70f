"""The Celery bootstep that owns the EngineHost of a GPU worker.

A worker is a GPU worker when it consumes a `gpu.<model>` queue. The engine is loaded before the consumer starts,
so no ticket is taken before it can be served; on shutdown the host drains after the consumer has stopped and
before the pool does.
"""

import json
import logging
from typing import Any, ClassVar

from celery import bootsteps
from django.conf import settings

from inference import heap
from inference.tickets import queue_name

log = logging.getLogger(__name__)

_hosts: list[Any] = []  # none, or the one of this process


def hosts() -> tuple[Any, ...]:
    """None while the engine loads, none while it drains, and none in other workers; else the one of this process."""
    return tuple(_hosts)


def _configured_engine() -> Any:
    from inference.engines import make_engine
    from inference.models import ServedModel

    model = ServedModel.objects.filter(pk=settings.MODEL).first()
    if model is None:
        log.error("the model %s is not registered; run `manage.py prepare_model`", settings.MODEL)
        raise SystemExit(1)
    return make_engine(
        kind=settings.ENGINE,
        path=settings.MODEL_DIR / settings.MODEL,
        context_length=model.context_length,
        slots=settings.ENGINE_SLOTS,
        kv_bytes=settings.KV_CACHE_BYTES,
        options=json.loads(settings.ENGINE_OPTIONS),
    )


class HostStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts the host before the consumer, drains it before the pool stops."""

    requires: ClassVar = {"celery.worker.components:Pool"}

    def include_if(self, worker: Any) -> bool:
        return queue_name(settings.MODEL) in worker.app.amqp.queues.consume_from

    def start(self, worker: Any) -> None:
        from inference.engine import EngineDead
        from inference.host import EngineHost

        try:
            host = EngineHost(_configured_engine(), model=settings.MODEL, name=worker.hostname)
            host.start()
        except EngineDead as error:
            log.error("the engine did not start: %s", error)
            raise SystemExit(1) from error
        _hosts.append(host)
        heap.settle()

    def stop(self, worker: Any) -> None:
        while _hosts:
            _hosts.pop().drain()

    terminate = stop
