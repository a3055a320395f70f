"""Who follows what, in Valkey and by its clock: the web processes with readers of a generation or of a topic.

`viewers:{id}` is a sorted set of channels, each with the millisecond at which it lapses unless its process renews it:
a process that was killed leaves nothing behind. `idle:{g}` counts for how long a generation was seen without a
viewer. It counts looks, not dates: an outage or a flush of Valkey, in which nobody could look, counts for nothing.
"""

import itertools
from collections.abc import Sequence
from uuid import UUID

from inference.shards import shard_of, store_of, stores

VIEWER_S = 20  # a process that has not renewed for this long is gone
RENEW_S = 5.0
LOOK_S = 4.0  # two looks further apart than this count as if they were not

# What scripts begin with: the time, and who follows an id.
PRELUDE = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function viewers(id) return redis.call('ZRANGEBYSCORE', 'viewers:' .. id, now, '+inf') end
"""

WATCH = (
    PRELUDE
    + """
local lengths = {}
for i = 3, #ARGV do
  local key = 'viewers:' .. ARGV[i]
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  redis.call('ZADD', key, now + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', key, ARGV[2])
  lengths[i - 2] = redis.call('LLEN', 'log:' .. ARGV[i])
end
return lengths
"""
)

FIND = PRELUDE + "return viewers(ARGV[1])"

LOOK = (
    PRELUDE
    + """
local found = {}
for i = 2, #ARGV do
  local idle, ms = 'idle:' .. ARGV[i], 0
  if #viewers(ARGV[i]) > 0 then
    redis.call('DEL', idle)
  else
    local known = redis.call('HMGET', idle, 'ms', 'at')
    if known[1] then ms = known[1] + math.min(now - known[2], ARGV[1]) end
    redis.call('HSET', idle, 'ms', ms, 'at', now)
    redis.call('EXPIRE', idle, 60)
  end
  found[i - 1] = ms
end
return found
"""
)


async def watch(ids: Sequence[UUID], channel: str) -> dict[UUID, int]:
    """Put a web process among the viewers of generations or topics, for VIEWER_S from now; the length of each log.

    Raises RedisError.
    """
    found: dict[UUID, int] = {}
    for shard, group in itertools.groupby(sorted(ids, key=shard_of), shard_of):
        part = list(group)
        named = map(str, part)
        found.update(zip(part, await stores()[shard].eval(WATCH, 0, channel, VIEWER_S * 1000, *named), strict=True))
    return found


async def unwatch(generation: UUID, channel: str) -> None:
    """The web process has no follower of this generation any more. Raises RedisError."""
    await store_of(generation).zrem(f"viewers:{generation}", channel)


async def find(of: UUID) -> list[str]:
    """The channels of the web processes that follow a generation or a topic. Raises RedisError."""
    return [name.decode() for name in await store_of(of).eval(FIND, 0, str(of))]


async def look(generations: Sequence[UUID]) -> dict[UUID, float]:
    """For how many seconds each was seen without a viewer, this look included. Raises RedisError."""
    found: dict[UUID, float] = {}
    for shard, group in itertools.groupby(sorted(generations, key=shard_of), shard_of):
        part = list(group)
        idle = await stores()[shard].eval(LOOK, 0, round(LOOK_S * 1000), *map(str, part))
        found.update((generation, ms / 1000) for generation, ms in zip(part, idle, strict=True))
    return found


async def seen(generations: Sequence[UUID]) -> None:
    """Somebody asked for these just now, without following: their time begins anew. Raises RedisError."""
    for generation in generations:
        await store_of(generation).delete(f"idle:{generation}")
