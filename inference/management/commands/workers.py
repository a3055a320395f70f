"""`manage.py workers [--json]`, beside a running site: the GPU workers of the last hour, and how each is."""

import json
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db.models.functions import Now

from billing.management.site import running_site
from inference.models import Worker

COLUMNS = ("name", "state", "model", "running", "slots", "kv_usage", "heartbeat_age_s", "host", "pid", "engine_pid")


class Command(BaseCommand):
    help = "List the GPU workers: state, load, and how long ago each was heard of."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON array, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        with running_site():
            workers = Worker.objects.annotate(now=Now()).order_by("name", "started_at")
            found = [described(worker, worker.now) for worker in workers]
        if options["json"]:
            self.stdout.write(json.dumps(found, indent=1))
        elif found:
            self._table(found)
        else:
            self.stdout.write("No GPU worker has run in the last hour.")

    def _table(self, found: list[dict[str, Any]]) -> None:
        rows = [COLUMNS, *([_cell(worker[column]) for column in COLUMNS] for worker in found)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        for row in rows:
            self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def described(worker: Worker, now: datetime) -> dict[str, Any]:
    """One worker. Its state is its own word (loading, ready, draining, gone), or dead when its lease has lapsed."""
    is_gone = worker.state == Worker.State.GONE
    lapsed = (now - worker.lease_until).total_seconds()
    states = {Worker.State.STARTING: "loading", Worker.State.GONE: "gone"}
    state = "dead" if lapsed > 0 and not is_gone else states.get(Worker.State(worker.state), worker.state.lower())
    return {
        "name": worker.name,
        "state": state,
        "model": worker.model_id,
        "running": worker.running if lapsed <= 0 else 0,  # what a dead one had is elsewhere
        "slots": worker.slots,
        "kv_usage": round(worker.kv_usage, 4),
        "heartbeat_age_s": round(max(0.0, lapsed if is_gone else lapsed + settings.LEASE_S), 1),
        "host": worker.host,
        "pid": worker.pid,
        "engine_pid": worker.engine_pid,
        "started_at": worker.started_at.isoformat(),
    }


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
