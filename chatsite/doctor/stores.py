"""Checks of what Valkey holds against the rows: reservations, counters, token logs, tickets."""

from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

from celery import current_app
from django.db.models.functions import Now
from kombu.exceptions import OperationalError as BrokerError

from billing import counters, truth
from chatsite.doctor.findings import Finding
from chatsite.doctor.questions import MOST
from inference import leftovers
from inference.models import Generation, ServedModel
from inference.tickets import queue_name

MOST_TICKETS = 5000  # tickets are hints: more of them only cost the workers time
MOST_JOBS = 200
SWEPT = 30  # times `grace`: what the side worker puts right within two minutes is no finding before


def reservations(*, grace: timedelta) -> list[Finding]:
    """Reservations whose generation has ended, or never was. Raises redis.RedisError."""
    held = [one.generation_id for one in counters.held(older_than_s=SWEPT * grace.total_seconds())]
    leaked = sorted(set(held) - _open_or_fresh(held, SWEPT * grace))
    return _about(
        leaked,
        "reservation-leaked",
        "Limits hold reservations of generations that have ended or never were.",
        "The side worker gives them back once a minute: if they stay, it does not run. --repair gives them back now.",
    )


def windows() -> list[Finding]:
    """Counters that differ from ledger and open grants. Raises redis.RedisError."""
    return _about(
        truth.drifted(),
        "counter-drifted",
        "Windows of limits count something else than the ledger and the open grants say.",
        "The side worker fills them anew every five minutes. --repair does so now.",
    )


def logs(*, grace: timedelta) -> list[Finding]:
    """Token logs that never expire, of generations that have ended. Raises redis.RedisError."""
    found = set(leftovers.kept())
    return _about(
        sorted(found - _open_or_fresh(found, SWEPT * grace)),
        "log-kept",
        "Token logs of ended generations would stay for ever.",
        "The side worker deletes a log when it purges the generation: see whether it runs. --repair deletes them now.",
    )


def tickets() -> list[Finding]:
    """Queues of the broker that nobody empties. Raises kombu's OperationalError, OSError."""
    limits = {queue_name(name): MOST_TICKETS for name in ServedModel.objects.values_list("name", flat=True)}
    limits[current_app.conf.task_default_queue] = MOST_JOBS
    full = []
    with current_app.connection_for_read() as connection:
        channel = connection.default_channel
        for queue, most in limits.items():
            try:
                waiting = channel.queue_declare(queue, passive=True).message_count
            except connection.channel_errors:
                continue  # nobody has used it yet
            if waiting > most:
                full.append(f"{queue}: {waiting}")
    return _about(
        full,
        "queue-long",
        "More messages wait in the broker than workers can need.",
        "No worker consumes that queue. Tickets may be purged (`celery purge -Q …`): workers find what waits.",
    )


STORE_ERRORS = (BrokerError, OSError)


def _open_or_fresh(generations: Iterable[UUID], grace: timedelta) -> set[UUID]:
    """Those that have not ended, or did a moment ago."""
    rows = Generation.objects.filter(pk__in=list(generations))
    ended = rows.filter(finished_at__lt=Now() - grace)
    return set(rows.values_list("pk", flat=True)) - set(ended.values_list("pk", flat=True))


def _about(subjects: Iterable[object], check: str, what: str, advice: str, *, is_problem: bool = True) -> list[Finding]:
    named = tuple(str(subject) for subject in subjects)[:MOST]
    return [Finding(check, what, advice, named, is_problem)] if named else []
