-- KEYS[1]: the lock, KEYS[2]: its counter.
-- ARGV[1]: the token, ARGV[2]: the new ttl in ms, ARGV[3]: the fencing token in 16 digits, ARGV[4]: for how
-- many ms a counter is kept.
-- Answers OK if the lock is ours, 0 if nobody has it, -1 if somebody else has, the counter's value if that is
-- beyond our fencing token and not marked as ours by lift.lua: then somebody has come after us, even if
-- the lock is ours again.
-- SET is used only where something is missing, so that it works when memory has run out.
local counter, own = redis.call("GET", KEYS[2]), tonumber(ARGV[3])
local value = math.floor(tonumber(counter or 0))
if value > own and string.sub(counter, -21) ~= ".0000" .. ARGV[3] then
  return value
end
local holder = redis.call("GET", KEYS[1])
if holder ~= ARGV[1] then
  return holder and -1 or 0
end
redis.call("PEXPIRE", KEYS[1], ARGV[2])
if value < own then
  redis.call("SET", KEYS[2], ARGV[3], "PX", ARGV[4])
else
  redis.call("PEXPIRE", KEYS[2], ARGV[4])
end
-- To be told of the next change: ours has ended what the first GET began.
redis.call("GET", KEYS[1])
return redis.status_reply("OK")
