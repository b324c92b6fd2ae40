-- KEYS[1]: the lock, KEYS[2]: the queue (member -> priority in us),
-- KEYS[3]: who lives (member -> deadline in ms of this master's clock), KEYS[4]: the lock's counter,
-- only if there is to be a fencing token.
-- ARGV[1]: the token, ARGV[2]: the ttl in ms, ARGV[3]: the member, ARGV[4]: its priority,
-- ARGV[5]: how many ms a waiter is believed to live, ARGV[6]: how many may wait,
-- ARGV[7]: the us of this master's clock after which it came too late; with KEYS[4] also
-- ARGV[8]: the counter's value that is proposed, ARGV[9]: by how many us it may be off this master's
-- clock, ARGV[10]: for how many ms a counter is kept (see acquire.lua).
-- Answers {what, the lock's ttl in ms, us of this master's clock, the lock's value, the counter's
-- value if granted}, where what is 0 granted, 1 held and we are next, 2 not our turn, 3 the queue is
-- full, 4 too late.
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
local ms = math.floor(now / 1000)
local asked = tonumber(ARGV[8] or now)
if now > tonumber(ARGV[7]) or math.abs(asked - now) > tonumber(ARGV[9] or 0) then
  return {4, -2, now, false, 0}
end
local dead = redis.call("ZRANGEBYSCORE", KEYS[3], "-inf", string.format("(%.0f", ms), "LIMIT", 0, 100)
if #dead > 0 then
  redis.call("ZREM", KEYS[3], unpack(dead))
  redis.call("ZREM", KEYS[2], unpack(dead))
end
local holder = redis.call("GET", KEYS[1])
local mine = holder == ARGV[1]
if not mine and not redis.call("ZSCORE", KEYS[2], ARGV[3]) then
  if redis.call("ZCARD", KEYS[2]) >= tonumber(ARGV[6]) then
    return {3, redis.call("PTTL", KEYS[1]), now, holder, 0}
  end
  redis.call("ZADD", KEYS[2], ARGV[4], ARGV[3])
end
local first = redis.call("ZRANGE", KEYS[2], 0, 0)[1] == ARGV[3]
local granted = mine or (first and not holder)
local lives = tonumber(ARGV[5])
redis.call("PEXPIRE", KEYS[2], lives + 100)
if granted then
  -- Whoever holds the lock and dies is not waited for longer than for the lock.
  lives = math.min(lives, tonumber(ARGV[2]))
end
redis.call("ZADD", KEYS[3], string.format("%.0f", ms + lives), ARGV[3])
redis.call("PEXPIRE", KEYS[3], ARGV[5] + 100)
if granted then
  redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
  local value = 0
  if KEYS[4] then
    value = tonumber(redis.call("GET", KEYS[4]) or 0)
    if not mine or value == 0 then
      value = math.max(value + 1, asked)
    end
    redis.call("SET", KEYS[4], string.format("%016.0f", value), "PX", ARGV[10])
  end
  return {0, tonumber(ARGV[2]), now, ARGV[1], value}
end
return {first and 1 or 2, redis.call("PTTL", KEYS[1]), now, holder, 0}
