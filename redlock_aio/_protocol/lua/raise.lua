-- KEYS: the locks, and then their counters.
-- ARGV[1]: the token, ARGV[2]: the least value of the counters afterwards, in 16 digits, ARGV[3]:
-- for how many ms a counter is kept.
-- Raises all counters to the highest of them and ARGV[2], if all locks have the token.
-- Returns the value that all counters have then, 0 if a lock does not have the token.
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
