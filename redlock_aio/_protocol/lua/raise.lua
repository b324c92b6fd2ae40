-- KEYS: the locks, and their counters behind them.
-- ARGV[1]: the token, ARGV[2]: a value of 16 digits that the counters are to have at least, ARGV[3]: for
-- how many ms a counter is kept.
-- Raises all counters to the highest of them and ARGV[2], if all locks are ours.
-- Answers the value that all counters have then, 0 if a lock is not ours.
local locks, value, counters = #KEYS / 2, tonumber(ARGV[2]), {}
for i = 1, locks do
  if redis.call("GET", KEYS[i]) ~= ARGV[1] then
    return 0
  end
  counters[i] = tonumber(redis.call("GET", KEYS[locks + i]) or 0)
  value = math.max(value, counters[i])
end
for i = 1, locks do
  if counters[i] < value then
    redis.call("SET", KEYS[locks + i], string.format("%016.0f", value), "PX", ARGV[3])
  end
end
return value
