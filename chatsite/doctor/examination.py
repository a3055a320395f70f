"""All checks, one after the other; and what can be put right without a doubt."""

import datetime
from collections.abc import Callable, Iterable
from datetime import timedelta
from uuid import UUID

from django.db import Error as DatabaseError
from django.db.models import OuterRef, Subquery, Value
from django.db.models.functions import Coalesce
from redis.exceptions import RedisError

from billing import counters
from billing.usage import roll_up
from chatsite.doctor import stores, surroundings
from chatsite.doctor.findings import Finding
from chatsite.doctor.questions import BOOKS, GENERATIONS, WORKERS, ask
from conversations.models import Message
from inference import leftovers
from inference.models import Generation
from inference.tasks import sweep_reservations

GRACE = timedelta(seconds=5)
SINCE = timedelta(days=2)


def examine(*, grace: timedelta = GRACE, since: timedelta = SINCE) -> list[Finding]:
    """One look at everything. What is younger than `grace` is under way and not judged.

    A store that does not answer is a finding itself.
    """
    looks: list[Callable[[], list[Finding]]] = [
        surroundings.system_checks,
        surroundings.migrations,
        lambda: ask([*GENERATIONS, *BOOKS, *WORKERS], grace=grace, since=since),
        lambda: stores.reservations(grace=grace),
        stores.windows,
        lambda: stores.logs(grace=grace),
        stores.tickets,
    ]
    found: dict[str, Finding] = {}
    for look in looks:
        for finding in _looked(look):
            found.setdefault(finding.check, finding)
    return list(found.values())


def _looked(look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except DatabaseError as error:
        return [_away("database", "PostgreSQL", error)]
    except RedisError as error:
        return [_away("valkey", "Valkey", error)]
    except stores.STORE_ERRORS as error:
        return [_away("broker", "Celery's broker", error)]


def _away(check: str, name: str, error: Exception) -> Finding:
    said = (str(error).splitlines() or [type(error).__name__])[0]
    return Finding(check, f"{name} does not answer as it should: {said}.", f"Start it; see {name}'s own log.")


# -- repairs ------------------------------------------------------------------------------------------


def repair(findings: Iterable[Finding]) -> list[str]:
    """Put right what can be without a doubt, each by what the site does itself in time; the checks it was done for."""
    done = []
    for finding in findings:
        if finding.check in REPAIRS:
            REPAIRS[finding.check](finding.subjects)
            done.append(finding.check)
    return done


def _mark_ends(messages: Iterable[str]) -> None:
    ends = Generation.objects.filter(pk=OuterRef("generation_id")).values("finish_reason")
    rows = Message.objects.filter(pk__in=messages, finish_reason=None)
    rows.update(finish_reason=Coalesce(Subquery(ends), Value("error")))


def _roll_up(days: Iterable[str]) -> None:
    for day in days:
        roll_up(datetime.date.fromisoformat(day), datetime.date.fromisoformat(day))


REPAIRS: dict[str, Callable[[Iterable[str]], object]] = {
    "answer-without-end": _mark_ends,
    "roll-up-differs": _roll_up,
    "reservation-leaked": lambda _: sweep_reservations(),
    "counter-drifted": counters.forget,
    "log-kept": lambda ids: leftovers.forget(UUID(name) for name in ids),
}
