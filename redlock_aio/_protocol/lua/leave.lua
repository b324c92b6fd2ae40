-- KEYS: the locks, their queues, and the queues' live members; see enqueue.lua.
-- ARGV[1]: the token, ARGV[2]: the member, ARGV[3]: "stay" keeps its place in the queues, "kept"
-- leaves them, but the lock stays until its ttl is over, which is shorter now, ARGV[4]: the prefix
-- of the channels; a member is "client/number", and the client subscribes.
-- Deletes the locks that have the token, and wakes the first member of each queue if its situation
-- has changed: the lock is free, or the member is next after another holder, or the lock is kept,
-- because a member that was not the first when it asked does not know when the lock ends. Returns
-- the same as release.lua. The first member may be dead: then the next one gets the lock by its
-- heartbeat, which removes dead members (see enqueue.lua).
local locks = #KEYS / 3
local kept = ARGV[3] == "kept"
local gone, other, ends, called, failed = false, false, 0, {}, nil
for i = 1, locks do
  local queue = KEYS[locks + i]
  local holder = get(KEYS[i])
  local news = kept or holder == ARGV[1] or not holder
  if type(holder) == "table" then
    -- The key is no lock; the others are released all the same.
    failed = holder
  elseif holder == ARGV[1] and not kept then
    redis.call("DEL", KEYS[i])
  elseif holder then
    local left = redis.call("PTTL", KEYS[i])
    if not other or ends >= 0 and (left < 0 or left > ends) then
      other, ends = holder, left
    end
  else
    gone = true
  end
  local members = redis.call("ZRANGE", queue, 0, 1)
  local first = members[1]
  if first and ARGV[3] ~= "stay" then
    if first == ARGV[2] then
      news, first = true, members[2]
    end
    if redis.call("ZREM", queue, ARGV[2]) == 1 then
      redis.call("ZREM", KEYS[2 * locks + i], ARGV[2])
    end
  end
  if news and first and first ~= ARGV[2] and not called[first] then
    called[first] = true
    -- A client without the permission to publish releases the lock all the same; the first member
    -- learns of that when it asks again.
    redis.pcall("PUBLISH", ARGV[4] .. string.match(first, "^[^/]*"), first)
  end
end
if failed then
  return failed
end
if other then
  return {string.sub(other, 1, 2049), ends}
end
return gone and 0 or redis.status_reply("OK")
