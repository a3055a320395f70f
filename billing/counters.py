"""Reservations in Valkey: the only user of the limit keys. Each step is one Lua script (billing.scripts).

PostgreSQL has the truth: the ledger, and the grants of open generations. The counters are believed while
`limits:epoch` names the store's present run id; after a flush, a restart with old data or a promotion of a replica it
does not. Then a new epoch begins, all windows count as missing, and each is filled from the database when it is next
asked for, before it answers. Starting an epoch waits for transactions that write generations reserved under the one
before; later ones are refused by a trigger on the row (inference.migrations). So no generation runs uncounted.

A store that does not answer in time means a Refusal with 503: never unlimited, never a 500.
"""

import functools
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import redis
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection, transaction

from billing import scripts
from billing.errors import unavailable

log = logging.getLogger(__name__)

EPOCH_LOCK = 7_305_811_092  # of PostgreSQL's advisory locks; the trigger has it too
LOCK_WAIT_S = 3
TRIES = 5
_beginning = threading.Lock()  # one thread of a process begins an epoch, the others wait for it
_scripts: dict[str, Any] = {}


class Unfilled(Exception):
    """A window could not be filled: too much was admitted meanwhile. To be tried again."""


@dataclass(frozen=True)
class Subjects:
    """Whom a generation counts for."""

    user_id: UUID
    organization_id: UUID
    api_key_id: UUID | None = None

    @property
    def user(self) -> str:
        return f"u{self.user_id}"

    @property
    def others(self) -> list[str]:
        key = [f"k{self.api_key_id}"] if self.api_key_id else []
        return [f"o{self.organization_id}", *key]


def subject_of(name: str) -> tuple[str, UUID]:
    """A subject's column in the database, and its id."""
    return {"u": "user_id", "o": "organization_id", "k": "api_key_id"}[name[0]], UUID(name[1:])


@functools.cache
def store() -> redis.Redis:
    """The counters' connection pool; one per process."""
    pool = redis.BlockingConnectionPool.from_url(
        settings.REDIS_URLS[0],
        max_connections=settings.REDIS_CONNECTIONS,
        timeout=settings.REDIS_TIMEOUT_S,
        socket_timeout=settings.REDIS_TIMEOUT_S,
        socket_connect_timeout=settings.REDIS_TIMEOUT_S,
        retry=None,
    )
    return redis.Redis(connection_pool=pool)


def run(script: str, **query: Any) -> Any:
    """One step. Raises redis.RedisError."""
    found = _scripts.get(script)
    if found is None:
        found = _scripts[script] = store().register_script(script)
    answer = found(args=[json.dumps(query)], client=store())
    return answer.decode() if isinstance(answer, bytes) else answer


# -- reservations -----------------------------------------------------------------------------------


def reserve(query: dict[str, Any]) -> dict[str, Any]:
    """What scripts.ADMIT answers to `query`; never stale or missing: what is missing is filled first.

    Raises Refusal (unavailable), django.db.OperationalError.
    """
    from billing.truth import fill  # which imports this module

    try:
        for _ in range(TRIES):
            answer: dict[str, Any] = json.loads(run(scripts.ADMIT, **query))
            if answer["is"] == "stale":
                begin_epoch()
            elif answer["is"] == "missing":
                fill(answer["epoch"], answer["at"], answer["missing"])
            else:
                answer["states"] = list(answer["states"])  # Lua's empty table comes as an object
                return answer
    except (redis.RedisError, Unfilled) as error:
        log.warning("reservation store: %r", error)
        raise unavailable() from error
    raise unavailable()


def settle(subjects: Subjects, generation_id: UUID, tokens: int) -> None:
    """The generation has ended with `tokens`: what it reserved beyond is given back. Twice is harmless.

    A store that is away is logged: the sweep finds what is left. The database has the end already.
    """
    query = {"gen": str(generation_id), "user": subjects.user, "others": subjects.others, "tokens": tokens}
    try:
        if run(scripts.SETTLE, **query) == "stale":
            begin_epoch()  # windows that are filled from now on have this end in them
            run(scripts.SETTLE, **query)
    except (redis.RedisError, DatabaseError) as error:  # after the commit that ended it: nothing may be raised
        log.warning("reservation not settled (the sweep will): %s", error)


def release(subjects: Subjects, generation_id: UUID) -> None:
    """The generation never happened: give back its request and its tokens. Twice is harmless."""
    settle(subjects, generation_id, -1)


# -- epochs -----------------------------------------------------------------------------------------


def begin_epoch() -> None:
    """Let windows be filled anew, unless another process has begun an epoch meanwhile.

    Waits for transactions that write generations, LOCK_WAIT_S at most. Raises django.db.OperationalError,
    redis.RedisError.
    """
    with _beginning:
        if run(scripts.EPOCH):
            return
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{LOCK_WAIT_S}s"])
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [EPOCH_LOCK])
            if run(scripts.EPOCH):
                return
            # Not undone by a rollback, and never a number that was used before.
            cursor.execute(
                "SELECT setval('billing_limit_epoch', greatest(last_value + 1,"
                " (extract(epoch FROM clock_timestamp()) * 1000)::bigint)) FROM billing_limit_epoch"
            )
            (number,) = cursor.fetchone()
            log.warning("limit counters begin epoch %s: they are filled from the database", number)
            run(scripts.EPOCH, number=str(number))


def distrust(epoch: int) -> None:
    """The database does not know this epoch: begin another."""
    try:
        run(scripts.DISTRUST, number=str(epoch))
    except redis.RedisError as error:
        log.warning("epoch not ended: %s", error)


def current_epoch() -> str:
    """Its number; empty when the counters are stale. Raises redis.RedisError."""
    return str(run(scripts.EPOCH))


# -- what is held -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """A reservation as the sweep sees it."""

    generation_id: UUID
    subjects: Subjects


def held(older_than_s: float, limit: int = 10_000) -> list[Held]:
    """Reservations of the present epoch that are older than this, oldest first. Raises redis.RedisError."""
    seconds, micros = store().time()
    most = int(seconds * 1000 + micros / 1000 - older_than_s * 1000)
    key = f"limits:held:{current_epoch()}"
    members: Sequence[bytes] = store().zrangebyscore(key, "-inf", most, start=0, num=limit)  # type: ignore[assignment]
    return [_held(member.decode()) for member in members]


def _held(member: str) -> Held:
    generation, user, *others = member.split()
    ids = {name[0]: UUID(name[1:]) for name in (user, *others)}
    return Held(UUID(generation), Subjects(ids["u"], ids["o"], ids.get("k")))


def open_generations(user_id: UUID) -> list[UUID]:
    """The generations that hold a place of this user. Raises redis.RedisError."""
    names: list[bytes] = store().hkeys(open_key(current_epoch(), f"u{user_id}"))  # type: ignore[assignment]
    return [UUID(name.decode()) for name in names if name]


def open_key(epoch: str, subject: str) -> str:
    return f"limits:open:{epoch}:{subject}"


def window_keys(epoch: str) -> Iterator[tuple[str, str, int]]:
    """(key, subject, seconds) of the windows that are known now. Raises redis.RedisError."""
    prefix = f"limits:w:{epoch}:"
    for raw in store().scan_iter(match=prefix + "*", count=1000):
        key = raw.decode()
        subject, _, seconds = key.removeprefix(prefix).partition(":")
        yield key, subject, int(seconds)


def total(key: str, seconds: int) -> tuple[int, int, int]:
    """(requests, tokens, the store's clock in ms) that a window counts now; -1 where it is unknown."""
    requests, tokens, now_ms = json.loads(run(scripts.TOTAL, key=key, seconds=seconds))
    return int(requests), int(tokens), int(now_ms)


def forget(keys: Iterable[str]) -> None:
    """Windows that are filled anew when they are next asked for. Raises redis.RedisError."""
    names = list(keys)
    if names:
        store().delete(*names)
