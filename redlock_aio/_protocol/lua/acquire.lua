-- KEYS[1]: the lock, KEYS[2]: its counter.
-- ARGV[1]: the token, ARGV[2]: the ttl in ms, ARGV[3]: the proposed value of the counter, which is
-- the time of all masters, ARGV[4] and ARGV[5]: the earliest and the latest time on this master's
-- clock at which the proposal is valid, ARGV[6]: for how many ms a counter is kept. Times are 16
-- digits, in us.
-- Returns 1 if the lock is granted and the counter has the proposed value, the counter's value if
-- the lock is granted and that value is another, 0 if another holder has the lock, this master's
-- time if that is outside of the two limits.
local now = redis.call("TIME")
-- Compared as texts, because numbers take longer. The text of whole seconds sorts after each time
-- of an earlier second, and before each time of the same second.
if now[1] < ARGV[4] or now[1] > ARGV[5] then
  return now
end
if not redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then
  local holder = get(KEYS[1])
  if type(holder) == "table" then
    return holder -- the error: it is no string, so it can't be a lock
  end
  -- This token has the lock already: no other client can have changed the counter since.
  return holder == ARGV[1] and tonumber(redis.call("GET", KEYS[2])) or 0
end
local last = redis.pcall("SET", KEYS[2], ARGV[3], "GET", "PX", ARGV[6])
if not last or #last == 16 and last < ARGV[3] then
  return 1
end
if type(last) == "table" then
  -- The error of Redis 6.0, where SET has no GET; it has changed nothing. If the counter is no
  -- string or forbidden, the command is refused here.
  last = redis.call("GET", KEYS[2])
end
local proposed = tonumber(ARGV[3])
local value = math.max(last and tonumber(last) + 1 or proposed, proposed)
-- Not tostring, which writes 1.7e+15.
redis.call("SET", KEYS[2], string.format("%016.0f", value), "PX", ARGV[6])
return value == proposed and 1 or value
