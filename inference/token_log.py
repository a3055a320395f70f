"""The token log: what each open generation has said so far, in Valkey, by one Lua call per step and shard.

Keys of generation g: `log:{g}` list of packed Entry, `attempt:{g}` the fence; both without a TTL while the generation
is open, `close_log` sets one. Calls also return who follows (inference.viewers). With several REDIS_URLs a generation
lives wholly on one of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

import msgpack

from inference.protocol import Append, Entry
from inference.shards import shard_of, store_of, stores
from inference.viewers import PRELUDE

# Refuses a stale attempt; refuses a gap by answering with the length it has; skips what it holds already, so
# that an append whose answer was lost may be repeated.
APPEND = (
    PRELUDE
    + """
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
    out[i] = {length, viewers(g)}
  end
end
return cmsgpack.pack(out)
"""
)

OPEN = (
    PRELUDE
    + """
local known = tonumber(redis.call('GET', 'attempt:' .. ARGV[1]) or '0')
if known > tonumber(ARGV[2]) then return {-1} end
redis.call('SET', 'attempt:' .. ARGV[1], ARGV[2])
for _, name in ipairs({'attempt:', 'log:'}) do redis.call('PERSIST', name .. ARGV[1]) end
return {1, redis.call('LRANGE', 'log:' .. ARGV[1], 0, -1), viewers(ARGV[1])}
"""
)

CLOSE = (
    PRELUDE
    + """
for _, name in ipairs({'attempt:', 'log:'}) do
  redis.call('EXPIRE', name .. ARGV[1], ARGV[2])
end
return viewers(ARGV[1])
"""
)


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


def _names(members: Iterable[bytes]) -> list[str]:
    return [member.decode() for member in members]


async def open_log(generation: UUID, attempt: int) -> Opened:
    """Begin an attempt: fences earlier ones and returns what is logged. Raises StaleAttempt, RedisError."""
    state, *rest = await store_of(generation).eval(OPEN, 0, str(generation), attempt)
    if state < 0:
        raise StaleAttempt
    entries, viewers = rest
    return Opened([Entry.unpack(entry) for entry in entries], _names(viewers))


async def append(appends: Sequence[Append]) -> dict[UUID, Appended]:
    """Append to many logs with one call per shard. Raises RedisError; repeating is harmless then."""
    results: dict[UUID, Appended] = {}
    for shard, group in groupby(
        sorted(appends, key=lambda a: shard_of(a.generation)), lambda a: shard_of(a.generation)
    ):
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


def _shard_of(request: Append) -> int:
    return shard_of(request.generation)


async def read(generation: UUID, after: int = 0) -> list[Entry]:
    """The entries with a sequence number above `after`. Raises RedisError."""
    return [Entry.unpack(entry) for entry in await _raw(generation, after)]


async def _raw(generation: UUID, after: int) -> list[bytes]:
    found: list[bytes] = await store_of(generation).lrange(f"log:{generation}", after, -1)  # type: ignore[assignment]
    return found


async def close_log(generation: UUID, seconds: float) -> list[str]:
    """The generation has ended: the log goes after `seconds`. Returns who follows. Raises RedisError."""
    return _names(await store_of(generation).eval(CLOSE, 0, str(generation), max(1, round(seconds))))
