"""The token log: what each open generation has said so far, in Valkey, by one Lua call per step and shard.

Keys of generation g: `log:{g}` list of packed Entry, `attempt:{g}` the fence, `viewers:{g}` channels of the web
processes that follow. No TTL while the generation is open; `close` sets one. With several REDIS_URLs a
generation lives wholly on one of them.
"""

import asyncio
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

import msgpack
import redis.asyncio
from django.conf import settings

from inference.protocol import Append, Entry

# Refuses a stale attempt; refuses a gap by answering with the length it has; skips what it holds already, so
# that an append whose answer was lost may be repeated.
APPEND = """
local out = {}
for i, a in ipairs(cmsgpack.unpack(ARGV[1])) do
  local g, attempt, first, entries = a[1], a[2], a[3], a[4]
  local known = tonumber(redis.call('GET', 'attempt:' .. g) or '0')
  if known > attempt then
    out[i] = {-1, {}}
  else
    if known < attempt then redis.call('SET', 'attempt:' .. g, attempt) end
    local length = redis.call('LLEN', 'log:' .. g)
    if first <= length + 1 then
      for k = length - first + 2, #entries do
        length = redis.call('RPUSH', 'log:' .. g, entries[k])
      end
    end
    out[i] = {length, redis.call('SMEMBERS', 'viewers:' .. g)}
  end
end
return cmsgpack.pack(out)
"""

OPEN = """
local known = tonumber(redis.call('GET', 'attempt:' .. ARGV[1]) or '0')
if known > tonumber(ARGV[2]) then return {-1} end
redis.call('SET', 'attempt:' .. ARGV[1], ARGV[2])
for _, name in ipairs({'attempt:', 'log:', 'viewers:'}) do redis.call('PERSIST', name .. ARGV[1]) end
return {1, redis.call('LRANGE', 'log:' .. ARGV[1], 0, -1), redis.call('SMEMBERS', 'viewers:' .. ARGV[1])}
"""

CLOSE = """
for _, name in ipairs({'attempt:', 'log:', 'viewers:'}) do
  redis.call('EXPIRE', name .. ARGV[1], ARGV[2])
end
return redis.call('SMEMBERS', 'viewers:' .. ARGV[1])
"""


class StaleAttempt(Exception):
    """A later attempt has opened this log: the caller's generation belongs to another worker now."""


@dataclass(frozen=True)
class Opened:
    """A log as an attempt finds it."""

    entries: list[Entry]
    viewers: list[str]


@dataclass(frozen=True)
class Appended:
    """A log after an append: its length, or -1 when the attempt is stale; and who follows it."""

    length: int
    viewers: list[str]

    @property
    def is_stale(self) -> bool:
        return self.length < 0


_stores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list["redis.asyncio.Redis"]] = weakref.WeakKeyDictionary()


def stores() -> list["redis.asyncio.Redis"]:
    """The shards' clients of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _stores:
        _stores[loop] = [
            redis.asyncio.Redis(
                connection_pool=redis.asyncio.BlockingConnectionPool.from_url(
                    url,
                    max_connections=settings.REDIS_CONNECTIONS,
                    timeout=settings.REDIS_TIMEOUT_S,  # a burst of readers waits its turn instead of failing
                    socket_timeout=settings.REDIS_TIMEOUT_S,
                    socket_connect_timeout=settings.REDIS_TIMEOUT_S,
                    retry=None,
                )
            )
            for url in settings.REDIS_URLS
        ]
    return _stores[loop]


def _shard(generation: UUID) -> int:
    return generation.int % len(settings.REDIS_URLS)


def _store(generation: UUID) -> "redis.asyncio.Redis":
    return stores()[_shard(generation)]


def _names(members: Iterable[bytes]) -> list[str]:
    return [member.decode() for member in members]


async def open_log(generation: UUID, attempt: int) -> Opened:
    """Begin an attempt: fences earlier ones and returns what is logged. Raises StaleAttempt, RedisError."""
    state, *rest = await _store(generation).eval(OPEN, 0, str(generation), attempt)
    if state < 0:
        raise StaleAttempt
    entries, viewers = rest
    return Opened([Entry.unpack(entry) for entry in entries], _names(viewers))


async def append(appends: Sequence[Append]) -> dict[UUID, Appended]:
    """Append to many logs with one call per shard. Raises RedisError; repeating is harmless then."""
    results: dict[UUID, Appended] = {}
    for shard, group in groupby(sorted(appends, key=lambda a: _shard(a.generation)), lambda a: _shard(a.generation)):
        part = list(group)
        packed = msgpack.packb(
            [(str(a.generation), a.attempt, a.first, [entry.pack() for entry in a.entries]) for a in part],
            use_bin_type=False,  # Lua's cmsgpack knows no other
        )
        answer = msgpack.unpackb(await stores()[shard].eval(APPEND, 0, packed), raw=True)
        for request, (length, viewers) in zip(part, answer, strict=True):
            # An empty Lua table packs as a map.
            results[request.generation] = Appended(length, _names(viewers))
    return results


async def read(generation: UUID, after: int = 0) -> list[Entry]:
    """The entries with a sequence number above `after`. Raises RedisError."""
    return [Entry.unpack(entry) for entry in await _raw(generation, after)]


async def _raw(generation: UUID, after: int) -> list[bytes]:
    found: list[bytes] = await _store(generation).lrange(f"log:{generation}", after, -1)  # type: ignore[assignment]
    return found


async def has_viewers(generation: UUID) -> bool:
    """Whether any web process follows this generation. Raises RedisError."""
    return bool(await _store(generation).scard(f"viewers:{generation}"))


async def subscribe(topics: Sequence[UUID], channel: str, seconds: int) -> None:
    """Put a web process's channel into the topics' viewer sets, for `seconds` from now. Raises RedisError."""
    for shard, group in groupby(sorted(topics, key=_shard), _shard):
        pipeline = stores()[shard].pipeline(transaction=False)
        for topic in group:
            pipeline.sadd(f"viewers:{topic}", channel)
            pipeline.expire(f"viewers:{topic}", seconds)
        await pipeline.execute()


async def viewers(topic: UUID) -> list[str]:
    """The channels of the web processes that follow a topic. Raises RedisError."""
    found: set[bytes] = await _store(topic).smembers(f"viewers:{topic}")  # type: ignore[assignment]
    return _names(found)


async def watch(generations: Sequence[UUID], channel: str) -> list[int]:
    """Put a web process's channel into the generations' viewer sets; returns the logs' lengths."""
    lengths: dict[UUID, int] = {}
    for shard, group in groupby(sorted(generations, key=_shard), _shard):
        part = list(group)
        pipeline = stores()[shard].pipeline(transaction=False)
        for generation in part:
            pipeline.sadd(f"viewers:{generation}", channel)
            # Never outlives what it names by more than a day, even if nobody closes it.
            pipeline.expire(f"viewers:{generation}", 86_400)
            pipeline.llen(f"log:{generation}")
        answers = await pipeline.execute()
        lengths.update(zip(part, answers[2::3], strict=True))
    return [lengths[generation] for generation in generations]


async def unwatch(generation: UUID, channel: str) -> None:
    """The web process has no follower of this generation any more. Raises RedisError."""
    await _store(generation).srem(f"viewers:{generation}", channel)


async def close_log(generation: UUID, seconds: float) -> list[str]:
    """The generation has ended: the log goes after `seconds`. Returns who follows. Raises RedisError."""
    return _names(await _store(generation).eval(CLOSE, 0, str(generation), max(1, round(seconds))))
