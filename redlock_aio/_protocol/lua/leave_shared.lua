-- KEYS[1]: the lock, KEYS[2]: its queue, KEYS[3]: its shares.
-- ARGV[1]: the token, ARGV[2]: the member, ARGV[3]: "stay" keeps its place in the queue, ARGV[4]: the
-- prefix of the channels; see leave.lua.
-- Removes the share of the token, deletes the lock with the last share, and wakes the members that
-- are next. Returns OK if there was a share, 0 if not; if another holder has the lock {its value, cut
-- after 2049 bytes, ttl in ms}.
local lock, queue, set = KEYS[1], KEYS[2], KEYS[3]
local holder = get(lock)
local ms, news = clock(), not holder
local had = holder == SHARED and lasts(set, ARGV[1], ms)
-- Also where another holder has the lock: the set is still there until it ends.
redis.call("ZREM", set, ARGV[1])
local members = redis.call("ZRANGE", queue, 0, 1)
local first = members[1]
if holder == SHARED then
  -- While nobody waits, the end of the lock may be late. If each reader that leaves lowered it, the
  -- next one would raise it again, and each change is pushed to all readers.
  news = not settle(lock, set, ms, first and 1.125 or 2)
end
if first and ARGV[3] ~= "stay" then
  if first == ARGV[2] then
    -- Behind the only member comes its deadline. A reader behind this one was next already.
    first = members[2] ~= "~" .. first and members[2]
    news = news or first and string.sub(first, -1) ~= "r"
  end
  redis.call("ZREM", queue, ARGV[2], "~" .. ARGV[2])
end
if ARGV[3] == "stay" then
  -- It waits for a share again, and is woken with the others.
  local live = redis.call("ZSCORE", queue, "~" .. ARGV[2])
  if live and live % 1 > 0 then
    redis.call("ZADD", queue, math.floor(live), "~" .. ARGV[2])
  end
end
if news and first and first ~= ARGV[2] then
  wake(queue, first, ARGV[4], ARGV[2])
end
if type(holder) == "table" then
  return holder
elseif holder and holder ~= SHARED then
  return {string.sub(holder, 1, 2049), redis.call("PTTL", lock)}
end
return had and redis.status_reply("OK") or 0
