-- KEYS[1]: the permit, KEYS[2]: its queue, KEYS[3]: the index; see permits.lua.
-- ARGV: as for leave.lua.
-- Deletes the permit if it has the token, and hands it over to the next member. Returns the same as
-- release.lua.
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
local lock, queue, index, member = KEYS[1], KEYS[2], KEYS[3], ARGV[2]
local holder, kept = get(lock), ARGV[3] == "kept"
local mine = holder == ARGV[1]
if mine and not kept then
  redis.call("DEL", lock)
end
local free, ms = not holder or mine and not kept, math.floor(now / 1000)
local first = redis.call("ZRANGE", queue, 0, 0)[1]
if ARGV[3] ~= "stay" then
  redis.call("ZREM", queue, member, "~" .. member)
else
  -- It waits again, and is called in its turn.
  local live = score(queue, "~" .. member)
  if live and live % 1 > 0 then
    redis.call("ZADD", queue, math.floor(live), "~" .. member)
  end
end
clean(queue, ms)
if free and (ARGV[3] ~= "stay" or first ~= member) then
  hand_over(lock, queue, index, now, ARGV[4])
elseif mine and kept then
  hand_over(lock, queue, index, now, ARGV[4], redis.call("PTTL", lock))
else
  -- Who is the first now does not know when the permit ends.
  local next, place, _, next_place = waiting(queue, ms)
  note(index, number_of(lock), free and next_place or not free and place)
  if next and next ~= member and first == member and ARGV[3] ~= "stay" then
    call(lock, ARGV[4], next)
  end
end
if type(holder) == "table" then
  return holder
end
if holder and not mine then
  return {string.sub(holder, 1, 2049), redis.call("PTTL", lock)}
end
return holder and redis.status_reply("OK") or 0
