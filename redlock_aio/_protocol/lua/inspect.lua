-- KEYS[1]: the lock, KEYS[2]: its counter, KEYS[3]: its queue; see enqueue.lua.
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
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local waiters, granted = 0, 0
-- An error has no elements.
local queue = redis.pcall("ZRANGE", KEYS[3], 0, -1, "WITHSCORES")
for i = 1, #queue, 2 do
  local deadline = 4e15 - queue[i + 1]
  if string.sub(queue[i], 1, 1) == "~" and deadline >= now then
    waiters = waiters + 1
    if deadline % 1 > 0 then
      granted = 1
    end
  end
end
-- A holder that was granted the lock in the queue stays there, and is marked as granted; there is
-- only one holder.
return {value and string.sub(value, 1, 2049), redis.call("PTTL", KEYS[1]), counter, value and waiters - granted or waiters}
