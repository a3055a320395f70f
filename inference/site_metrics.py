"""Gauges of the whole site, read from the database when /metrics is asked: queues and workers, wherever they run."""

from collections.abc import Iterable

from django.db.models import Count, Min
from django.db.models.functions import Now
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from billing.models import Plan
from inference.models import Generation, ServedModel, Worker


def site_metrics() -> list[Metric]:
    """All of them. Raises django.db.Error."""
    return [*_queues(), *_workers()]


def _queues() -> Iterable[Metric]:
    depth = GaugeMetricFamily("chatsite_queue_depth", "Generations that wait for a slot.", labels=["model", "band"])
    oldest = GaugeMetricFamily(
        "chatsite_queue_oldest_seconds", "How long the one that came first has waited.", labels=["model"]
    )
    waiting = Generation.objects.filter(status=Generation.Status.WAITING).values_list("model_id", "band")
    found = waiting.annotate(count=Count("pk"), age=Now() - Min("created_at"))
    rows = {(model, band): (count, age) for model, band, count, age in found}
    models = ServedModel.objects.filter(is_enabled=True).values_list("pk", flat=True)
    bands = set(Plan.objects.values_list("band", flat=True))
    for model, band in sorted({(model, band) for model in models for band in bands} | rows.keys()):
        depth.add_metric([model, str(band)], rows.get((model, band), (0, None))[0])
    for model in sorted({*models, *(model for model, _ in rows)}):
        ages = [age.total_seconds() for (other, _), (_, age) in rows.items() if other == model]
        oldest.add_metric([model], max(ages, default=0.0))
    return depth, oldest


def _workers() -> Iterable[Metric]:
    states = GaugeMetricFamily("chatsite_workers", "Live GPU workers, by state.", labels=["model", "state"])
    each = ["model", "worker"]
    slots = GaugeMetricFamily("chatsite_slots", "Generations that a worker runs at once.", labels=each)
    running = GaugeMetricFamily("chatsite_running", "Generations that a worker's engine runs.", labels=each)
    usage = GaugeMetricFamily("chatsite_kv_cache_usage_ratio", "Share of the KV cache in use, 0 to 1.", labels=each)
    live = Worker.objects.filter(lease_until__gt=Now()).exclude(state=Worker.State.GONE)
    counts: dict[tuple[str, str], int] = {}
    counts |= {(model, state.value): 0 for model in ServedModel.objects.values_list("pk", flat=True) for state in LIVE}
    for worker in live:
        counts[worker.model_id, worker.state] = counts.get((worker.model_id, worker.state), 0) + 1
        slots.add_metric([worker.model_id, worker.name], worker.slots)
        running.add_metric([worker.model_id, worker.name], worker.running)
        usage.add_metric([worker.model_id, worker.name], worker.kv_usage)
    for (model, state), count in counts.items():
        states.add_metric([model, state.lower()], count)
    return states, slots, running, usage


LIVE = (Worker.State.STARTING, Worker.State.READY, Worker.State.DRAINING)
