-- KEYS: the locks, and their counters behind them.
-- ARGV[1]: the token, ARGV[2]: a value of 16 digits that the counters are to have at least, ARGV[3]: for
-- how many ms a counter is kept.
-- Answers the value that all counters have then if all locks are ours, 0 if not.
local locks = #KEYS / 2
local value = tonumber(ARGV[2])
for i = 1, locks do
  if redis.call("GET", KEYS[i]) ~= ARGV[1] then
    return 0
  end
  value = math.max(value, tonumber(redis.call("GET", KEYS[locks + i]) or 0))
end
for i = locks + 1, #KEYS do
  if tonumber(redis.call("GET", KEYS[i]) or 0) < value then
    redis.call("SET", KEYS[i], string.format("%016.0f", value), "PX", ARGV[3])
  end
end
return value
