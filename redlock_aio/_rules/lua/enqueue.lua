-- KEYS[1]: the lock, KEYS[2]: the queue (member -> priority in us),
-- KEYS[3]: who lives (member -> deadline in ms of this master's clock).
-- ARGV[1]: the token, ARGV[2]: the ttl in ms, ARGV[3]: the member, ARGV[4]: its priority,
-- ARGV[5]: how many ms a waiter is believed to live, ARGV[6]: how many may wait,
-- ARGV[7]: the us of this master's clock after which it came too late.
-- Answers {what, the lock's ttl in ms, us of this master's clock, the lock's value}, where what is
-- 0 granted, 1 held and we are next, 2 not our turn, 3 the queue is full, 4 too late.
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
local ms = math.floor(now / 1000)
if now > tonumber(ARGV[7]) then
  return {4, -2, now, false}
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
    return {3, redis.call("PTTL", KEYS[1]), now, holder}
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
  return {0, tonumber(ARGV[2]), now, ARGV[1]}
end
return {first and 1 or 2, redis.call("PTTL", KEYS[1]), now, holder}
