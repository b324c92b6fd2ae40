-- KEYS[1]: the lock, KEYS[2]: its counter, KEYS[3]: its queue, KEYS[4]: who lives; see enqueue.lua.
-- Answers {the lock's value, cut after 2049 bytes (see release.lua), its ttl in ms, what the counter says, how many wait}, with nothing
-- in the place of a value or a counter that is not there. Changes nothing.
-- Where something else has the name of the counter or of the queue there is none.
local value = get(KEYS[1])
if type(value) == "table" then
  return value -- the error: it is no string, so it is nobody's lock
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
-- Whoever has the lock stays in the queue, and is marked as granted; only one can have it.
return {value and string.sub(value, 1, 2049), redis.call("PTTL", KEYS[1]), counter, value and waiters - granted or waiters}
