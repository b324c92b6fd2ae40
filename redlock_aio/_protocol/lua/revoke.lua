-- KEYS[1]: the lock, KEYS[2]: its queue, see enqueue.lua, KEYS[3]: its shares, see shared.lua.
-- ARGV[1]: the value that is revoked, ARGV[2]: the revocation that replaces it, ARGV[3]: for how
-- many ms, ARGV[4]: the prefix of the channels, see leave.lua, the rest: readers, if the value says
-- that they share the lock. All locks that readers share have this value. So it is revoked only while
-- one of these readers has its share, or nobody has: a command that comes late must not end the
-- leases of readers that came since.
-- Returns OK if the lock had that value, else 0. Nobody can acquire the lock before the time is
-- over; its holder is notified, and its extensions are refused. A free lock gets the revocation as
-- well: otherwise a client whose request is on its way would be granted the lock here, and would
-- count that grant together with grants that were revoked elsewhere.
local holder = get(KEYS[1])
if type(holder) == "table" then
  return holder -- the error
end
if holder and holder ~= ARGV[1] then
  return 0
end
if holder == SHARED then
  local ms = clock()
  local last = redis.call("ZRANGE", KEYS[3], -1, -1, "WITHSCORES")[2]
  local found = not last or tonumber(last) < ms
  for i = 5, #ARGV do
    -- By commands that the user of a fair lock may use: readers of other programs need one more.
    local rank = redis.call("ZRANK", KEYS[3], ARGV[i])
    local ends = rank and redis.call("ZRANGE", KEYS[3], rank, rank, "WITHSCORES")[2]
    found = found or ends and tonumber(ends) >= ms
  end
  if not found then
    return 0
  end
  redis.call("DEL", KEYS[3])
end
redis.call("SET", KEYS[1], ARGV[2], "PX", ARGV[3])
if not holder then
  return 0
end
-- The member that had been granted the lock leaves the queue, so the queue does not wait for it. If
-- it is alive and waits for other masters, it must not count this grant any more: it is woken, asks
-- again, and returns to its place.
local queue = redis.pcall("ZRANGE", KEYS[2], 0, -1, "WITHSCORES")
for i = 1, #queue, 2 do
  if string.sub(queue[i], 1, 1) == "~" and queue[i + 1] % 1 > 0 then
    local member = string.sub(queue[i], 2)
    redis.call("ZREM", KEYS[2], member, queue[i])
    -- A member that waits for permits is told for which one it is called; see permits.lua.
    local what = string.sub(KEYS[1], 1, 19) == "redlock_aio:permit:" and member .. " " .. KEYS[1] or member
    publish(ARGV[4], member, what)
  end
end
return redis.status_reply("OK")
