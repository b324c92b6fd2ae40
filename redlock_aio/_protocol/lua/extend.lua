-- KEYS: the locks, and then their counters if there is a fencing token.
-- ARGV[1]: the token, ARGV[2]: the new ttl in ms; ARGV[3]: "again" sets locks again that are gone;
-- with counters ARGV[4]: the fencing token in 16 digits, ARGV[5]: for how many ms a counter is
-- kept.
-- All locks are extended or none; without "again" a lock that is gone is never set again here.
-- Returns OK if all locks have the token, -1 if another holder has one, 0 if one is gone. If a
-- counter is beyond the fencing token and not marked with it by lift.lua, returns the highest such
-- counter's value: another client has been granted the lock since, even if the lock has this token
-- again.
-- SET is used only where a key is missing, so that an extension works when memory has run out.
local locks, own, low = #KEYS, tonumber(ARGV[4]), nil
if own then
  locks, low = locks / 2, {}
  local beyond = 0
  for i = 1, locks do
    local counter = redis.call("GET", KEYS[locks + i])
    local value = math.floor(tonumber(counter or 0))
    if value > own and string.sub(counter, -21) ~= ".0000" .. ARGV[4] then
      beyond = math.max(beyond, value)
    end
    low[i] = value < own
  end
  if beyond > 0 then
    return beyond
  end
end
local gone
for i = 1, locks do
  local holder = redis.call("GET", KEYS[i])
  if not holder then
    gone = gone or {}
    gone[i] = true
  elseif holder ~= ARGV[1] then
    return -1
  end
end
if gone and ARGV[3] ~= "again" then
  return 0
end
for i = 1, locks do
  if gone and gone[i] then
    redis.call("SET", KEYS[i], ARGV[1], "PX", ARGV[2])
  else
    redis.call("PEXPIRE", KEYS[i], ARGV[2])
  end
  if own then
    if low[i] then
      redis.call("SET", KEYS[locks + i], ARGV[4], "PX", ARGV[5])
    else
      redis.call("PEXPIRE", KEYS[locks + i], ARGV[5])
    end
  end
  -- Read again for client tracking: this script's own write has ended the tracking that the first
  -- GET began, and the holder must be notified of the next change.
  redis.call("GET", KEYS[i])
end
return redis.status_reply("OK")
