"""System checks: configurations that cannot work are said at start-up, each in one line."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import redis
from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections

from chatsite.env import ImpossibleSetting

Apps = Sequence[AppConfig] | None
OTHER_PROCESSES = 2  # side worker and beat
LEASE_LEAST_S = 2.0  # renewed once a second


def connections_needed() -> int:
    """Database connections that all processes of one machine may hold at once."""
    processes = int(settings.WEB_PROCESSES) + int(settings.GPU_WORKERS) + OTHER_PROCESSES
    return processes * int(settings.DATABASE_POOL)


def require_secret_key() -> None:
    """End the process where it would serve with a key that everyone knows."""
    if _has_no_secret_key():
        raise ImpossibleSetting("SECRET_KEY is not set: give one in the environment (50 random characters).")


def _has_no_secret_key() -> bool:
    return bool(settings.SECRET_KEY.startswith("unset-"))


@register(Tags.security, deploy=True)
def secret_key_is_set(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """Only for deployments: building and testing need no key."""
    if _has_no_secret_key():
        return [Error("SECRET_KEY is not set.", hint="Give 50 random characters.", id="chatsite.E001")]
    return []


@register(Tags.compatibility)
def engine_options_are_an_object(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """ENGINE_OPTIONS becomes keyword arguments."""
    try:
        options = json.loads(settings.ENGINE_OPTIONS)
    except json.JSONDecodeError as error:
        return [Error(f"ENGINE_OPTIONS is not JSON: {error}.", id="chatsite.E002")]
    if not isinstance(options, dict):
        return [Error('ENGINE_OPTIONS must be a JSON object, like {"max_num_seqs": 8}.', id="chatsite.E002")]
    return []


@register(Tags.compatibility)
def lease_outlives_its_renewal(app_configs: Apps, **kwargs: Any) -> list[CheckMessage]:
    """A lease that ends before its renewal takes work from healthy workers."""
    if settings.LEASE_S < LEASE_LEAST_S:
        said = f"LEASE must be at least {LEASE_LEAST_S:g} seconds: it is renewed once a second."
        return [Error(said, id="chatsite.E003")]
    return []


@register(Tags.database)
def database_has_connections(app_configs: Apps, databases: Sequence[str] | None, **kwargs: Any) -> list[CheckMessage]:
    """Every process may fill its pool."""
    found: list[CheckMessage] = []
    for name in databases or ():
        with connections[name].cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('max_connections')::int"
                " - current_setting('superuser_reserved_connections')::int"
            )
            (limit,) = cursor.fetchone()
        needed = connections_needed()
        if needed > limit:
            said = f"The processes may open {needed} database connections; {name} allows {limit}."
            hint = "Lower DATABASE_POOL or WEB_PROCESSES, or raise PostgreSQL's max_connections."
            found.append(Error(said, hint=hint, id="chatsite.E004"))
    return found


@register(Tags.database)
def stores_evict_nothing(app_configs: Apps, databases: Sequence[str] | None, **kwargs: Any) -> list[CheckMessage]:
    """Tickets, token logs and counters must not be evicted. Asked together with the databases."""
    found: list[CheckMessage] = []
    for number, facts in _facts(databases, "memory"):
        if isinstance(facts, redis.RedisError):
            found.append(Warning(f"REDIS_URL number {number} does not answer: {facts}.", id="chatsite.W005"))
        elif (policy := facts.get("maxmemory_policy")) != "noeviction":
            said = f"REDIS_URL number {number} evicts keys (maxmemory-policy {policy})."
            found.append(Error(said, hint="Set maxmemory-policy noeviction.", id="chatsite.E005"))
    return found


@register(Tags.database)
def stores_persist(app_configs: Apps, databases: Sequence[str] | None, **kwargs: Any) -> list[CheckMessage]:
    """Nothing is lost for good with Valkey's data, but streams stall and counters are filled anew."""
    return [
        Warning(
            f"REDIS_URL number {number} keeps nothing over a restart (appendonly no).",
            hint="Set appendonly yes.",
            id="chatsite.W006",
        )
        for number, facts in _facts(databases, "persistence")
        if isinstance(facts, dict) and not facts.get("aof_enabled")
    ]


def _facts(databases: Sequence[str] | None, section: str) -> Iterator[tuple[int, dict[str, Any] | redis.RedisError]]:
    """Number (from 1) and INFO, or why there is none, of each store; nothing unless databases are asked."""
    options = {"socket_timeout": settings.REDIS_TIMEOUT_S, "socket_connect_timeout": settings.REDIS_TIMEOUT_S}
    for number, url in enumerate(settings.REDIS_URLS if databases else (), 1):
        try:
            with redis.Redis.from_url(url, **options) as client:
                yield number, client.info(section)
        except redis.RedisError as error:
            yield number, error
