"""The counters' Lua, one step each; billing.counters runs them. Times are milliseconds of the store's own clock.

Keys, all of one epoch number N (billing.counters says what an epoch is):

- `limits:epoch` "<run id of the store> N". Another run id, or none: everything may be stale.
- `limits:w:N:<subject>:<seconds>` one window as a hash: `r<bucket>` and `t<bucket>` → requests and tokens admitted in
  that bucket, `i` → it was filled from the database. A bucket is 1 % of the window and leaves as a whole, when its
  last moment is one window old. So no interval of the window's length ever holds more than the limit, and nothing is
  held for more than 1.01 windows.
- `limits:open:N:<user>` generation → its reservation (JSON: `a` when admitted, `n` tokens, `g` granted output,
  `w` windows it is counted in). The same key of an API key and of an organization: generation → user. In each of them
  the empty name → a number that every admission changes; a user's is there once it was filled.
- `limits:held:N` all reservations by admission time, for the sweep.
- `limits:end:<generation>` tokens it came to (`-`: never happened) and when it was admitted, kept for a while: who
  fills a window from what the database said a moment ago must neither take it for a running one, nor miss it.
"""

_COMMON = """
local BUCKETS, KEEP_MS, END_MS = 100, 172800000, 120000
local q = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function epoch()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  local found = redis.call('GET', 'limits:epoch')
  if not found or string.sub(found, 1, #run) ~= run then return nil end
  return string.sub(found, #run + 2)
end

local function window_key(n, subject, seconds)
  return 'limits:w:' .. n .. ':' .. subject .. ':' .. seconds
end
local function open_key(n, subject) return 'limits:open:' .. n .. ':' .. subject end
local function bucket(at, seconds) return string.format('%.0f', math.floor(at / (seconds * 10))) end
local function keep(key, seconds)
  redis.call('PEXPIRE', key, string.format('%.0f', seconds * 2000 + 60000))
end

local function add(key, seconds, at, requests, tokens)
  local b = bucket(at, seconds)
  redis.call('HINCRBY', key, 'r' .. b, requests)
  redis.call('HINCRBY', key, 't' .. b, string.format('%.0f', tokens))
end

local function holds(n, subject)
  local key = open_key(n, subject)
  return redis.call('HLEN', key) - redis.call('HEXISTS', key, '')
end

local function hold(n, gen, user, others, r)
  redis.call('HSET', open_key(n, user), gen, cjson.encode(r))
  redis.call('PEXPIRE', open_key(n, user), KEEP_MS)
  for _, other in ipairs(others) do
    redis.call('HSET', open_key(n, other), gen, user)
    redis.call('PEXPIRE', open_key(n, other), KEEP_MS)
  end
  local key = 'limits:held:' .. n
  redis.call('ZADD', key, string.format('%.0f', r.a), gen .. ' ' .. user .. ' ' .. table.concat(others, ' '))
  redis.call('PEXPIRE', key, KEEP_MS)
end

-- What counts now: {requests, tokens, first and last bucket in use, amounts by bucket}; nil where nothing is known.
local function read(key, seconds)
  local all = redis.call('HGETALL', key)
  if #all == 0 then return nil end
  local first = math.floor(now / (seconds * 10)) - BUCKETS
  local s = {r = 0, t = 0, by = {r = {}, t = {}}, low = {}, high = {}}
  local gone = {}
  for i = 1, #all, 2 do
    local kind, b, v = string.sub(all[i], 1, 1), tonumber(string.sub(all[i], 2)), tonumber(all[i + 1])
    if b and b < first then
      gone[#gone + 1] = all[i]
    elseif b and v ~= 0 then
      s[kind] = s[kind] + v
      s.by[kind][#s.by[kind] + 1] = {b, v}
      if not s.low[kind] or b < s.low[kind] then s.low[kind] = b end
      if not s.high[kind] or b > s.high[kind] then s.high[kind] = b end
    end
  end
  if #gone > 0 and not q.peek then redis.call('HDEL', key, unpack(gone)) end
  return s
end

local function leaves(b, seconds) return (b + 1 + BUCKETS) * seconds * 10 end

-- Milliseconds until `need` more fit under `limit`; -1: never.
local function wait(s, kind, seconds, need, limit)
  if need > limit then return -1 end
  local over = s[kind] + need - limit
  if over <= 0 then return 0 end
  table.sort(s.by[kind], function(x, y) return x[1] < y[1] end)
  for _, entry in ipairs(s.by[kind]) do
    over = over - entry[2]
    if over <= 0 then return math.max(1, leaves(entry[1], seconds) - now) end
  end
  return 1
end

-- [used requests, used tokens, ms to the next token or request that renews, ms until all is renewed (each by kind)]
local function state(s, seconds)
  local out = {s.r, s.t}
  for _, kind in ipairs({'r', 't'}) do
    out[#out + 1] = s.low[kind] and leaves(s.low[kind], seconds) - now or 0
    out[#out + 1] = s.high[kind] and leaves(s.high[kind], seconds) - now or 0
  end
  return out
end
"""

# q: gen, user, others (subjects), spans [[subject, seconds, requests, tokens], …] (-1: no limit), prompt, wanted,
# least (output tokens), places. Answers JSON with `is`: ok, held, busy, refused, missing, stale. With `peek` it takes
# nothing and answers ok with the states alone.
ADMIT = (
    _COMMON
    + """
local n = epoch()
if not n then return cjson.encode({is = 'stale'}) end
local mine = open_key(n, q.user)
local old = q.gen and redis.call('HGET', mine, q.gen)
local out = {is = 'ok', epoch = n, at = now, states = {}}
local found, missing, left = {}, {}, q.wanted + q.prompt
for i, span in ipairs(q.spans) do
  found[i] = read(window_key(n, span[1], span[2]), span[2])
  if not found[i] then missing[#missing + 1] = {span[1], span[2]} end
end
if redis.call('HEXISTS', mine, '') == 0 then missing[#missing + 1] = {q.user, 0} end
if #missing > 0 then return cjson.encode({is = 'missing', epoch = n, at = now, missing = missing}) end

if q.peek or old then
  for i, span in ipairs(q.spans) do out.states[i] = state(found[i], span[2]) end
  if old then
    local r = cjson.decode(old)
    out.is, out.grant, out.at = 'held', r.g, r.a
  end
  return cjson.encode(out)
end

for i, span in ipairs(q.spans) do
  if span[4] >= 0 then left = math.min(left, span[4] - found[i].t) end
end
local grant = math.min(q.wanted, left - q.prompt)
local least = math.min(q.least, q.wanted)
local waits, worst, cut = {}, 0, 0
for i, span in ipairs(q.spans) do
  local w, kind = 0, 'r'
  if span[3] >= 0 then w = wait(found[i], 'r', span[2], 1, span[3]) end
  if span[4] >= 0 and w ~= -1 then
    local tokens = wait(found[i], 't', span[2], q.prompt + least, span[4])
    if tokens == -1 or tokens > w then w, kind = tokens, 't' end
    if grant < q.wanted and span[4] - found[i].t == left then cut = i end
  end
  out.states[i] = state(found[i], span[2])
  if w == -1 or (worst ~= -1 and w > worst) then
    worst, out.index, out.kind = w, i, kind
    out.pending = holds(n, span[1]) > 0
  end
end
if worst ~= 0 then
  out.is, out.wait = 'refused', worst
  return cjson.encode(out)
end
if holds(n, q.user) >= q.places then
  out.is = 'busy'
  return cjson.encode(out)
end

local r = {a = now, n = q.prompt + grant, g = grant, w = {}}
for i, span in ipairs(q.spans) do
  local key = window_key(n, span[1], span[2])
  add(key, span[2], now, 1, r.n)
  keep(key, span[2])
  r.w[#r.w + 1] = {key, span[2]}
  local s = out.states[i]
  local full = leaves(tonumber(bucket(now, span[2])), span[2]) - now
  out.states[i] = {s[1] + 1, s[2] + r.n, s[3] == 0 and full or s[3], full, s[5] == 0 and full or s[5], full}
end
redis.call('DEL', 'limits:end:' .. q.gen)
hold(n, q.gen, q.user, q.others, r)
redis.call('HINCRBY', mine, '', 1)
for _, other in ipairs(q.others) do redis.call('HINCRBY', open_key(n, other), '', 1) end
out.grant, out.cut = grant, cut
return cjson.encode(out)
"""
)

# q: gen, user, others, tokens (-1: it never happened). Doing it twice is harmless. Answers stale, none or ok.
SETTLE = (
    _COMMON
    + """
local n = epoch()
if not n then return 'stale' end
local tokens = q.tokens < 0 and '-' or string.format('%.0f', q.tokens)
local raw = redis.call('HGET', open_key(n, q.user), q.gen)
if not raw then
  redis.call('SET', 'limits:end:' .. q.gen, tokens, 'NX', 'PX', END_MS)
  return 'none'
end
local r = cjson.decode(raw)
redis.call('SET', 'limits:end:' .. q.gen, tokens .. ' ' .. string.format('%.0f', r.a), 'PX', END_MS)
for _, w in ipairs(r.w) do
  if redis.call('EXISTS', w[1]) == 1 then
    add(w[1], w[2], r.a, q.tokens < 0 and -1 or 0, math.max(q.tokens, 0) - r.n)
  end
end
redis.call('HDEL', open_key(n, q.user), q.gen)
for _, other in ipairs(q.others) do redis.call('HDEL', open_key(n, other), q.gen) end
redis.call('ZREM', 'limits:held:' .. n, q.gen .. ' ' .. q.user .. ' ' .. table.concat(q.others, ' '))
return 'ok'
"""
)

# q: epoch, subject, is_user, seen: the subject's number of admissions before the database was read, and candidates
# [gen, …]: what it held then. spans [[seconds, [[bucket, requests, tokens], …]], …] of ended generations, open [[gen,
# user, others, at, tokens, grant], …] not among them, booked [gen, …]: candidates that are among them. Answers stale,
# again (something was admitted meanwhile: read anew) or ok.
FILL = (
    _COMMON
    + """
if epoch() ~= q.epoch then return 'stale' end
local mine = open_key(q.epoch, q.subject)
if (redis.call('HGET', mine, '') or '') ~= q.seen then return 'again' end
local fresh, known = {}, {}
for _, span in ipairs(q.spans) do
  local key = window_key(q.epoch, q.subject, span[1])
  if redis.call('EXISTS', key) == 0 then
    fresh[#fresh + 1] = {key, span[1]}
    redis.call('HSET', key, 'i', 1)
    for _, b in ipairs(span[2]) do redis.call('HSET', key, 'r' .. b[1], b[2], 't' .. b[1], b[3]) end
    keep(key, span[1])
  end
end
local function count(r)
  for _, f in ipairs(fresh) do
    add(f[1], f[2], r.a, 1, r.n)
    r.w[#r.w + 1] = f
  end
end
-- A reservation as it is held, without the windows that are filled now: they may have counted it before they lapsed.
local function held(gen, user)
  local raw = user and redis.call('HGET', open_key(q.epoch, user), gen)
  if not raw then return nil end
  local r, w = cjson.decode(raw), {}
  for _, old in ipairs(r.w) do
    local is_fresh = false
    for _, f in ipairs(fresh) do is_fresh = is_fresh or f[1] == old[1] end
    if not is_fresh then w[#w + 1] = old end
  end
  r.w = w
  return r
end
local function holder(gen) return q.is_user and q.subject or redis.call('HGET', mine, gen) end
-- Whether it was settled a moment ago; counts what it came to.
local function count_ended(gen, at)
  local said = redis.call('GET', 'limits:end:' .. gen)
  if not said then return false end
  local tokens, admitted = string.match(said, '^(%S+) ?(%d*)$')
  at = tonumber(admitted) or at
  if tokens ~= '-' and at then count({a = at, n = tonumber(tokens), w = {}}) end
  return true
end
for _, gen in ipairs(q.booked) do
  known[gen] = true
  local user = holder(gen)
  local r = held(gen, user)
  if r then redis.call('HSET', open_key(q.epoch, user), gen, cjson.encode(r)) end
end
for _, row in ipairs(q.open) do
  local gen, user, others = row[1], row[2], row[3]
  known[gen] = true
  if not count_ended(gen, row[4]) then
    local r = held(gen, user) or {a = row[4], n = row[5], g = row[6], w = {}}
    count(r)
    hold(q.epoch, gen, user, others, r)
  end
end
-- Admitted, and not yet written when the database was read.
for _, gen in ipairs(q.candidates) do
  if not known[gen] then
    local user = holder(gen)
    local r = held(gen, user)
    if r then
      count(r)
      redis.call('HSET', open_key(q.epoch, user), gen, cjson.encode(r))
    else
      count_ended(gen)
    end
  end
end
if q.is_user then
  redis.call('HSETNX', mine, '', 1)
  redis.call('PEXPIRE', mine, KEEP_MS)
end
return 'ok'
"""
)

# q: number (absent: only ask). Answers the current epoch number, or an empty text.
EPOCH = (
    _COMMON
    + """
if q.number then
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  redis.call('SET', 'limits:epoch', run .. ' ' .. q.number)
end
return epoch() or ''
"""
)

# q: number. Nothing of that epoch is believed any more.
DISTRUST = (
    _COMMON
    + """
if epoch() == q.number then return redis.call('DEL', 'limits:epoch') end
return 0
"""
)

# q: key, seconds. [requests, tokens, now]; nil where nothing is known.
TOTAL = (
    _COMMON
    + """
q.peek = true
local s = read(q.key, q.seconds)
return cjson.encode({s and s.r or -1, s and s.t or -1, now})
"""
)
