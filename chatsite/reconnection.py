"""How soon a process finds its database again.

psycopg's pool waits 1, 2, 4 ... 128 s between its attempts to connect, and as long between looks at connections that a
restart broke, one by one: PostgreSQL is back, and the site stays away for about as long again (measured: 9 s more after
20 s), each process for another time, so that workers took each other for dead. The pool has no settings for either.
"""

from typing import Any

from psycopg import Connection, Error
from psycopg_pool import ConnectionPool
from psycopg_pool.base import AttemptWithBackoff

PAUSE_S = 0.5
_is_usable = ConnectionPool.check_connection


def reconnect_soon() -> None:
    """From now on, every pool of this process tries twice a second, and takes broken connections for a sign."""
    AttemptWithBackoff.INITIAL_DELAY = PAUSE_S
    AttemptWithBackoff.DELAY_BACKOFF = 1.0
    ConnectionPool.check_connection = staticmethod(_check)  # type: ignore[assignment, method-assign]


def _check(connection: Connection[Any]) -> None:
    """Raises psycopg.Error for a connection that is of no use; those as old as it will not be, either."""
    try:
        _is_usable(connection)
    except Error:
        pool: Any = connection._pool
        if pool is not None and connection._created_at > pool._drained_at:
            pool.drain()
        raise
