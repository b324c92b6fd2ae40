-- KEYS: the locks, and their counters behind them if there is a fencing token.
-- ARGV[1]: the token, ARGV[2]: the new ttl in ms, ARGV[3]: "1" sets locks again that are gone, and with
-- counters ARGV[4]: the fencing token in 16 digits, ARGV[5]: for how many ms a counter is kept.
-- Answers OK if all locks are ours, -1 if somebody else has one, 0 if one is gone, the highest
-- counter's value if that is beyond our fencing token and not marked as ours; see extend_fenced.lua.
local locks, beyond = #KEYS, 0
if ARGV[4] then
  locks = locks / 2
  for i = locks + 1, #KEYS do
    local counter = redis.call("GET", KEYS[i])
    local value = math.floor(tonumber(counter or 0))
    if value > tonumber(ARGV[4]) and string.sub(counter, -21) ~= ".0000" .. ARGV[4] then
      beyond = math.max(beyond, value)
    end
  end
  if beyond > 0 then
    return beyond
  end
end
local gone, some = {}, false
for i = 1, locks do
  local holder = redis.call("GET", KEYS[i])
  if not holder then
    gone[i], some = true, true
  elseif holder ~= ARGV[1] then
    return -1
  end
end
if some and ARGV[3] ~= "1" then
  return 0
end
for i = 1, locks do
  if gone[i] then
    redis.call("SET", KEYS[i], ARGV[1], "PX", ARGV[2])
  else
    redis.call("PEXPIRE", KEYS[i], ARGV[2])
  end
  if ARGV[4] then
    local counter = KEYS[locks + i]
    -- Not compared as a text: others may have written it in another way.
    if tonumber(redis.call("GET", counter) or 0) < tonumber(ARGV[4]) then
      redis.call("SET", counter, ARGV[4], "PX", ARGV[5])
    else
      redis.call("PEXPIRE", counter, ARGV[5])
    end
  end
  -- To be told of the next change: ours has ended what the first GET began.
  redis.call("GET", KEYS[i])
end
return redis.status_reply("OK")
