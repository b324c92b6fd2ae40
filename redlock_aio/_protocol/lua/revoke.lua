-- KEYS[1]: the lock, KEYS[2]: its queue, KEYS[3]: who lives; see enqueue.lua.
-- ARGV[1]: the value that is revoked, ARGV[2]: what takes its place, ARGV[3]: for how many ms,
-- ARGV[4]: what channels begin with; see leave.lua.
-- Answers OK if it was that value, else 0. Nobody gets the lock before the time is over, but its
-- holder is told, and an extension of its is refused. A free lock is closed as well: so nobody gets
-- it whose request is on its way, and who counts on what was revoked elsewhere.
local holder = get(KEYS[1])
if type(holder) == "table" then
  return holder -- the error
end
if holder and holder ~= ARGV[1] then
  return 0
end
redis.call("SET", KEYS[1], ARGV[2], "PX", ARGV[3])
if not holder then
  return 0
end
-- Whoever had been granted it is not waited for. If it is alive and waits for other masters, it must
-- not count on this one any more: it is called, asks again, and comes back to its place.
local live = redis.pcall("ZRANGEBYSCORE", KEYS[3], "-inf", "+inf", "WITHSCORES")
for i = 1, #live, 2 do
  if tonumber(live[i + 1]) % 1 > 0 then
    redis.call("ZREM", KEYS[3], live[i])
    redis.pcall("ZREM", KEYS[2], live[i])
    redis.pcall("PUBLISH", ARGV[4] .. string.match(live[i], "^[^/]*"), live[i])
  end
end
return redis.status_reply("OK")
