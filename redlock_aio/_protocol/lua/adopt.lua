-- KEYS: the locks, and then their counters if there is a fencing token.
-- ARGV[1]: the old value of the locks, ARGV[2]: their new value, ARGV[3]: the ttl in ms, and with
-- counters ARGV[4]: the fencing token in 16 digits, ARGV[5]: for how many ms a counter is kept,
-- ARGV[6]: by how many us the fencing token may be ahead of this master's clock.
-- All locks get the new value or none. A lock that has the new value already counts as well, so the
-- command can be repeated. A lock that is gone is never set again here. Returns OK if all locks
-- have the new value, 0 if not, the highest counter's value if that is beyond the fencing token,
-- see extend.lua; this master's time if the fencing token is too far ahead of it: no grant can have
-- led to that token, and a forged one must not use up the numbers.
local locks, beyond, low = #KEYS, 0, false
if ARGV[4] then
  locks = locks / 2
  for i = locks + 1, #KEYS do
    local counter = redis.call("GET", KEYS[i])
    local value = math.floor(tonumber(counter or 0))
    if value > tonumber(ARGV[4]) and string.sub(counter, -21) ~= ".0000" .. ARGV[4] then
      beyond = math.max(beyond, value)
    end
    low = low or value < tonumber(ARGV[4])
  end
  if beyond > 0 then
    return beyond
  end
end
for i = 1, locks do
  local holder = redis.call("GET", KEYS[i])
  if holder ~= ARGV[1] and holder ~= ARGV[2] then
    return 0
  end
end
if low then
  local now = redis.call("TIME")
  if tonumber(ARGV[4]) > now[1] * 1000000 + now[2] + ARGV[6] then
    return now
  end
end
for i = 1, locks do
  redis.call("SET", KEYS[i], ARGV[2], "PX", ARGV[3])
  if ARGV[4] then
    local counter = KEYS[locks + i]
    -- Compared as a number: other clients may have written it in another format.
    if tonumber(redis.call("GET", counter) or 0) < tonumber(ARGV[4]) then
      redis.call("SET", counter, ARGV[4], "PX", ARGV[5])
    else
      redis.call("PEXPIRE", counter, ARGV[5])
    end
  end
end
return redis.status_reply("OK")
