-- KEYS[1]: the lock, KEYS[2]: its counter, KEYS[3]: its queue, KEYS[4]: the queue's live members;
-- see enqueue.lua.
-- Returns {the lock's value, cut after 2049 bytes (see release.lua), its ttl in ms, the counter's
-- value, the number of waiters}, with nil in the place of a value or a counter that does not exist.
-- Changes nothing. A key of another type in the place of the counter or the queue counts as
-- missing.
local value = get(KEYS[1])
if type(value) == "table" then
  return value -- the error: it is no string, so it can't be a lock
end
local counter = redis.pcall("GET", KEYS[2])
if type(counter) == "table" or counter and #counter > 40 then
  counter = false
end
local time = redis.call("TIME")
local now = string.format("%.0f", time[1] * 1000 + math.floor(time[2] / 1000))
-- An error has no elements.
local live = redis.pcall("ZRANGEBYSCORE", KEYS[4], now, "+inf", "WITHSCORES")
local lives = {}
for i = 1, #live, 2 do
  lives[live[i]] = tonumber(live[i + 1])
end
local waiters, granted = 0, 0
for _, member in ipairs(redis.pcall("ZRANGE", KEYS[3], 0, -1)) do
  if lives[member] then
    waiters = waiters + 1
    if lives[member] % 1 > 0 then
      granted = 1
    end
  end
end
-- A holder that was granted the lock in the queue stays there, and is marked as granted; there is
-- only one holder.
return {value and string.sub(value, 1, 2049), redis.call("PTTL", KEYS[1]), counter, value and waiters - granted or waiters}
