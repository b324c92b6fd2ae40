-- KEYS[1]: the lock, KEYS[2]: its counter, KEYS[3]: its queue, see enqueue.lua, KEYS[4]: its
-- shares, see shared.lua.
-- Returns {the lock's value, cut after 2049 bytes (see release.lua), its ttl in ms, the counter's
-- value, the number of waiters, how many of them want the lock for themselves, the value of a reader,
-- its ttl in ms, ...}, with nil in the place of a value or a counter that does not exist. Of the
-- readers those 100 come that last longest. Changes nothing. A key of another type in the place of
-- the counter, the queue or the shares counts as missing.
local value = get(KEYS[1])
if type(value) == "table" then
  return value -- the error: it is no string, so it can't be a lock
end
local counter = redis.pcall("GET", KEYS[2])
if type(counter) == "table" or counter and #counter > 40 then
  counter = false
end
local ms, waiters, writers, readers = clock(), 0, 0, 0
-- An error has no elements.
local queue = redis.pcall("ZRANGE", KEYS[3], 0, -1, "WITHSCORES")
for i = 1, #queue, 2 do
  local deadline = 4e15 - queue[i + 1]
  -- A holder that was granted the lock in the queue stays there, and is marked as granted.
  local waits = deadline >= ms and not (value and deadline % 1 > 0)
  if string.sub(queue[i], 1, 1) == "~" and waits then
    waiters = waiters + 1
    writers = writers + (string.sub(queue[i], -1) == "r" and 0 or 1)
  end
end
local reply = {value and string.sub(value, 1, 2049), redis.call("PTTL", KEYS[1]), counter, waiters, writers}
local shares = value == SHARED and redis.pcall("ZRANGE", KEYS[4], -100, -1, "WITHSCORES") or {}
for i = 1, #shares, 2 do
  local left = shares[i + 1] - ms
  if left >= 0 then
    local last = 5 + 2 * readers
    reply[last + 1], reply[last + 2] = string.sub(shares[i], 1, 2049), left
    readers = readers + 1
  end
end
return reply
