-- KEYS[1]: the lock, KEYS[2]: its queue, KEYS[3]: its shares.
-- ARGV: as for enqueue.lua without a fencing token. The name of a member that wants a share ends in
-- "r". A share is granted where nobody has the lock for itself, and nobody who wants that comes
-- first in the queue.
-- Returns {us of this master's clock, 0} if a share is granted to a member that has not entered the
-- queue, else the five elements of enqueue.lua. The codes: 0 granted, 1 held and no member that wants
-- the lock for itself comes first, 2 such a member comes first, 3 the queue is full, 4 too late.
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[7]) then
  return {4, -2, now, false, 0}
end
local lock, queue, set, token, ttl = KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[2])
local holder, ms = get(lock), math.floor(now / 1000)
-- Also where the lock is free: a client without the permission is refused at its first share, and
-- not at its first extension.
local mine = lasts(set, token, ms)
if type(holder) == "table" then
  return holder -- the error: it is no string, so it can't be a lock
end
mine = mine and holder == SHARED
local open = not holder or holder == SHARED

-- Returns whether one of the members before a rank wants the lock for itself.
local function is_gated(rank)
  for from = 0, rank - 1, 100 do
    local members = redis.call("ZRANGE", queue, from, math.min(from + 99, rank - 1))
    if not members[1] then
      return false -- another program has changed the queue: its members have no deadlines
    end
    for _, member in ipairs(members) do
      if string.sub(member, 1, 1) == "~" then
        return false -- the end of the members
      elseif string.sub(member, -1) ~= "r" then
        return true
      end
    end
  end
  return false
end

local empty = clean(queue, ms)
if ARGV[8] == "first" and open and not mine and (empty or not is_gated(math.huge)) then
  join(lock, set, token, ttl, not holder, ms)
  return {now, 0}
end
local left = holder and redis.call("PTTL", lock) or -2
local shown = holder and string.sub(holder, 1, 2049)
local member, live, lives = ARGV[3], "~" .. ARGV[3], tonumber(ARGV[5])
local new = redis.call("ZADD", queue, ARGV[4], member, 4e15 - ms - lives, live) > 0
redis.call("PEXPIRE", queue, ARGV[5] + 100)
local rank = redis.call("ZRANK", queue, member)
local most = tonumber(ARGV[6])
if new and not mine and rank >= most and is_full(queue, most) then
  redis.call("ZREM", queue, member, live)
  return {3, left, now, shown, 0}
end
local gated = is_gated(rank)
if not (mine or open and not gated) then
  return {gated and 2 or 1, left, now, shown, 0}
end
-- The queue does not wait for a dead reader longer than for its share.
redis.call("ZADD", queue, 4e15 - ms - math.min(lives, ttl) - 0.5, live)
join(lock, set, token, ttl, not holder, ms)
return {0, ttl, now, token, 0}
