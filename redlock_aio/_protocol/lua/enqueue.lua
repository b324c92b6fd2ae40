-- KEYS: the locks, their queues, and with a fencing token the locks' counters; as many of each as
-- there are locks. A queue has two elements for each member: the member itself, whose score is its
-- priority in us, and "~" with the member, whose score is 4e15 minus its deadline: the ms of this
-- master's clock until which it counts as alive, and half a ms more if it was granted the lock. So
-- the members come first, in their order, and the earliest deadline is the last element.
-- ARGV[1]: the token, ARGV[2]: the ttl in ms, ARGV[3]: the member, ARGV[4]: its priority,
-- ARGV[5]: for how many ms a member counts as alive, ARGV[6]: how many may be before a new member,
-- ARGV[7]: the us of this master's clock after which the command is too late, ARGV[8]: "first" if
-- the member need not enter queues that are empty; with counters also ARGV[9]: the proposed value of
-- the counter, ARGV[10]: by how many us it may be off this master's clock, ARGV[11]: for how many ms
-- a counter is kept (see acquire.lua).
-- Several locks are granted together, to a member that is the first in each queue.
-- Returns {us of this master's clock, the counter's value} if the locks are granted to a member that
-- has not entered the queues. Otherwise returns {code, the lock's ttl in ms, us of this master's
-- clock, the lock's value, cut after 2049 bytes (see release.lua), the counter's value if granted}.
-- The codes: 0 granted, 1 held and this member is next, 2 not its turn, 3 the queue is full, 4 too
-- late. Of several locks the ttl and the value are those of the lock that is held for longest.
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
local asked = tonumber(ARGV[9] or now)
if now > tonumber(ARGV[7]) or math.abs(asked - now) > tonumber(ARGV[10] or 0) then
  return {4, -2, now, false, 0}
end
local locks = #KEYS / (ARGV[9] and 3 or 2)
local mine, holder, left = true, false, -2
for i = 1, locks do
  local has = get(KEYS[i])
  if type(has) == "table" then
    return has -- the error: no member can get all locks, so none is enqueued
  end
  mine = mine and has == ARGV[1]
  if has and has ~= ARGV[1] then
    local ends = redis.call("PTTL", KEYS[i])
    if not holder or left >= 0 and (ends < 0 or ends > left) then
      holder, left = string.sub(has, 1, 2049), ends
    end
  end
end
local ms, begins = math.floor(now / 1000), ARGV[8] == "first"

-- Removes dead members from a queue, and returns whether it is empty.
local function clean(queue)
  local last = redis.call("ZRANGE", queue, -1, -1, "WITHSCORES")
  if not last[2] or tonumber(last[2]) <= 4e15 - ms then
    return not last[2]
  end
  local over = string.format("(%.0f", 4e15 - ms)
  local dead = redis.call("ZRANGEBYSCORE", queue, over, "+inf", "LIMIT", 0, 100)
  for i = 1, #dead do
    dead[#dead + 1] = string.sub(dead[i], 2)
  end
  redis.call("ZREM", queue, unpack(dead))
  return not redis.call("ZRANGE", queue, 0, 0)[1]
end

local alone = begins and not mine and not holder
for i = locks + 1, begins and 2 * locks or 0 do
  alone = clean(KEYS[i]) and alone
end
if not alone then
  local member, live, lives = ARGV[3], "~" .. ARGV[3], tonumber(ARGV[5])
  local first, full, led, new = true, false, {}, {}
  for i = 1, locks do
    local queue = KEYS[locks + i]
    local before = not begins and redis.call("ZRANK", queue, member)
    led[i] = before == 0
    if not led[i] then
      if not begins then
        clean(queue)
      end
      new[i] = redis.call("ZADD", queue, ARGV[4], member, 4e15 - ms - lives, live) > 0
      redis.call("PEXPIRE", queue, ARGV[5] + 100)
      before = redis.call("ZRANK", queue, member)
      full = full or new[i] and before >= tonumber(ARGV[6])
    end
    first = first and before == 0
  end
  if full and not mine then
    for i = 1, locks do
      if new[i] then
        redis.call("ZREM", KEYS[locks + i], member, live)
      end
    end
    return {3, left, now, holder, 0}
  end
  local granted = mine or (first and not holder)
  if granted then
    -- The queue does not wait for a dead holder longer than for its lock.
    lives = math.min(lives, tonumber(ARGV[2])) + 0.5
  end
  for i = 1, locks do
    if granted or led[i] then
      redis.call("ZADD", KEYS[locks + i], 4e15 - ms - lives, live)
    end
    -- A member that is granted the lock in its turn waits no more, and need not be kept for longer
    -- than its last request has asked for.
    if led[i] and (mine or not granted) then
      redis.call("PEXPIRE", KEYS[locks + i], ARGV[5] + 100)
    end
  end
  if not granted then
    return {first and 1 or 2, left, now, holder, 0}
  end
end
local value = 0
-- Read before anything is granted: a counter of another type is an error, which must leave no lock
-- behind.
for i = 2 * locks + 1, #KEYS do
  value = math.max(value, tonumber(redis.call("GET", KEYS[i]) or 0))
end
for i = 1, locks do
  redis.call("SET", KEYS[i], ARGV[1], "PX", ARGV[2])
end
if ARGV[9] then
  if not mine or value == 0 then
    value = math.max(value + 1, asked)
  end
  for i = 2 * locks + 1, #KEYS do
    redis.call("SET", KEYS[i], string.format("%016.0f", value), "PX", ARGV[11])
  end
end
if alone then
  return {now, value}
end
return {0, tonumber(ARGV[2]), now, ARGV[1], value}
