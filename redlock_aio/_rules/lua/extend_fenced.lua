-- KEYS[1]: the lock, KEYS[2]: its counter.
-- ARGV[1]: the token, ARGV[2]: the new ttl in ms, ARGV[3]: the fencing token in 16 digits, ARGV[4]: for how
-- many ms a counter is kept, ARGV[5]: "1" sets a lock again that is gone.
-- Answers OK if the lock is ours, 0 if nobody has it, -1 if somebody else has, the counter's value if that is beyond our fencing token:
-- then somebody has come after us, even if the lock is ours again.
-- SET is used only where something is missing, so that it works when memory has run out.
local value = tonumber(redis.call("GET", KEYS[2]) or 0)
local own = tonumber(ARGV[3])
if value > own then
  return value
end
local holder = redis.call("GET", KEYS[1])
if holder == ARGV[1] then
  redis.call("PEXPIRE", KEYS[1], ARGV[2])
elseif holder or ARGV[5] ~= "1" then
  return holder and -1 or 0
else
  redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
end
if value < own then
  redis.call("SET", KEYS[2], ARGV[3], "PX", ARGV[4])
else
  redis.call("PEXPIRE", KEYS[2], ARGV[4])
end
-- To be told of the next change: ours has ended what the first GET began.
redis.call("GET", KEYS[1])
return redis.status_reply("OK")
