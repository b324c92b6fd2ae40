-- Put before scripts that change the shares of a lock, behind shared.lua.
-- A lock ends with the last deadline of its readers, or a little later (see `most`): otherwise
-- each extension of each reader would change the lock, and that is pushed to all readers.

-- Removes readers whose deadlines are over, up to 100 of them; deletes the lock with the last reader.
-- Returns whether a reader is left.
-- most: the lock ends earlier now if it lasts for more than so many times the time that is left to
-- the last deadline; false for never. It never ends before that deadline.
local function settle(lock, set, ms, most)
  local dead = redis.call("ZRANGEBYSCORE", set, "-inf", string.format("(%.0f", ms), "LIMIT", 0, 100)
  if dead[1] then
    redis.call("ZREM", set, unpack(dead))
  end
  local last = tonumber(redis.call("ZRANGE", set, -1, -1, "WITHSCORES")[2])
  if not last or last < ms then
    redis.call("DEL", lock, set)
    return false
  end
  local left, ends = last - ms, redis.call("PTTL", lock)
  local slack = math.floor(left / 8)
  if ends < left or most and ends > most * left + 1 then
    redis.call("PEXPIRE", lock, left + slack)
    redis.call("PEXPIRE", set, left + slack)
  end
  return true
end

-- Adds a reader, or sets its deadline; free: whether nobody has the lock.
local function join(lock, set, token, ttl, free, ms)
  if free then
    local left = ttl + math.floor(ttl / 8)
    -- First the command that a server refuses when its memory is full: then nothing has changed.
    redis.call("SET", lock, SHARED, "PX", left)
    -- A new set: readers whose lock was deleted meanwhile, by force, must not count beside those
    -- that came later.
    redis.call("DEL", set)
    redis.call("ZADD", set, ms + ttl, token)
    redis.call("PEXPIRE", set, left)
    return
  end
  local before = redis.call("ZSCORE", set, token)
  redis.call("ZADD", set, ms + ttl, token)
  if not before and redis.call("PTTL", set) < 0 then
    -- The set was lost while the lock is shared, such as by an eviction: the new one ends with it.
    redis.call("PEXPIRE", set, math.max(redis.call("PTTL", lock), 1))
  end
  settle(lock, set, ms, before and tonumber(before) > ms + ttl and 1.125)
end
