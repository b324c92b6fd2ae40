-- KEYS: the locks, and their counters behind them if there is a fencing token.
-- ARGV[1]: the token, ARGV[2]: the new ttl in ms; ARGV[3]: "again" sets locks again that are gone; with counters
-- ARGV[4]: the fencing token in 16 digits, ARGV[5]: for how many ms a counter is kept.
-- All locks are extended or none; without "again" one that is gone is never set again here.
-- Answers OK if all locks are ours, -1 if somebody else has one, 0 if one is gone, and if a counter is beyond
-- our fencing token and not marked as ours by lift.lua, the highest such counter's value: then somebody has
-- come after us, even if the lock is ours again.
-- SET is used only where something is missing, so that an extension works when memory has run out.
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
  -- To be told of the next change: ours has ended what the first GET began.
  redis.call("GET", KEYS[i])
end
return redis.status_reply("OK")
