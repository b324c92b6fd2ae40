-- KEYS: the locks, and then their counters if a fencing token is requested.
-- ARGV[1]: the token, ARGV[2]: the ttl in ms, and with counters ARGV[3]: the proposed value,
-- ARGV[4] and ARGV[5]: the earliest and the latest time on this master's clock at which the
-- proposal is valid, ARGV[6]: for how many ms a counter is kept; see acquire.lua.
-- All locks are granted or none. Returns OK if they are granted, with counters their value, which
-- is the same for all; 0 if another holder has one of them; this master's time if that is outside
-- of the two limits.
local locks = #KEYS
if ARGV[3] then
  locks = locks / 2
  local now = redis.call("TIME")
  if now[1] < ARGV[4] or now[1] > ARGV[5] then
    return now
  end
end
local ours = 0
for i = 1, locks do
  local holder = get(KEYS[i])
  if type(holder) == "table" then
    return holder -- the error: it is no string, so it can't be a lock
  elseif holder == ARGV[1] then
    ours = ours + 1
  elseif holder then
    return 0
  end
end
-- If this token has the locks already, no other client can have changed the counters since.
local value = ours == 0 and tonumber(ARGV[3] or 0) or 0
for i = locks + 1, #KEYS do
  local last = redis.call("GET", KEYS[i])
  if last then
    value = math.max(value, tonumber(last) + (ours == 0 and 1 or 0))
  end
end
if ours > 0 then
  return ours < locks and 0 or ARGV[3] and value or redis.status_reply("OK")
end
for i = 1, locks do
  redis.call("SET", KEYS[i], ARGV[1], "PX", ARGV[2])
end
for i = locks + 1, #KEYS do
  redis.call("SET", KEYS[i], string.format("%016.0f", value), "PX", ARGV[6])
end
return ARGV[3] and value or redis.status_reply("OK")
