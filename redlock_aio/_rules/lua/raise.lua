-- KEYS[1]: the lock, KEYS[2]: its counter.
-- ARGV[1]: the token, ARGV[2]: a value of 16 digits that the counter is to have at least, ARGV[3]: for how many
-- ms a counter is kept.
-- Answers the counter's value if the lock is ours, 0 if not.
if redis.call("GET", KEYS[1]) ~= ARGV[1] then
  return 0
end
local value = tonumber(redis.call("GET", KEYS[2]) or 0)
if value < tonumber(ARGV[2]) then
  value = tonumber(ARGV[2])
  redis.call("SET", KEYS[2], ARGV[2], "PX", ARGV[3])
end
return value
