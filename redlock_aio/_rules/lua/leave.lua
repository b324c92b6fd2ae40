-- KEYS[1]: the lock, KEYS[2]: the queue, KEYS[3]: who lives; see enqueue.lua.
-- ARGV[1]: the token, ARGV[2]: the member, ARGV[3]: "stay" keeps its place in the queue,
-- ARGV[4]: what channels begin with; a member is "client/number", and the client listens.
-- Gives back what is ours, and calls who is first now, if there is something new for it:
-- the lock is free, or it comes next after somebody else. Answers as release.lua does.
local holder = redis.call("GET", KEYS[1])
local mine = holder == ARGV[1]
local news = mine or not holder
if mine then
  redis.call("DEL", KEYS[1])
end
if ARGV[3] ~= "stay" then
  news = news or redis.call("ZRANGE", KEYS[2], 0, 0)[1] == ARGV[2]
  redis.call("ZREM", KEYS[2], ARGV[2])
  redis.call("ZREM", KEYS[3], ARGV[2])
end
if news then
  local time = redis.call("TIME")
  local ms = string.format("(%.0f", time[1] * 1000 + math.floor(time[2] / 1000))
  local dead = redis.call("ZRANGEBYSCORE", KEYS[3], "-inf", ms, "LIMIT", 0, 100)
  if #dead > 0 then
    redis.call("ZREM", KEYS[3], unpack(dead))
    redis.call("ZREM", KEYS[2], unpack(dead))
  end
  local first = redis.call("ZRANGE", KEYS[2], 0, 0)[1]
  if first and first ~= ARGV[2] then
    -- Whoever may not publish frees the lock all the same; the first finds out by asking.
    redis.pcall("PUBLISH", ARGV[4] .. string.match(first, "^[^/]*"), first)
  end
end
if holder and not mine then
  return {holder, redis.call("PTTL", KEYS[1])}
end
return mine and redis.status_reply("OK") or 0
