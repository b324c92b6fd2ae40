-- KEYS[1]: the lock.  ARGV[1]: the token, ARGV[2]: the new ttl in ms.
-- Only a key that is still ours; one that is gone is never set again here.
-- Answers OK if it is ours, 0 if there is no key, -1 if somebody else has it.
local holder = redis.call("GET", KEYS[1])
if holder == ARGV[1] then
  redis.call("PEXPIRE", KEYS[1], ARGV[2])
  -- To be told of the next change: ours has ended what the first GET began.
  redis.call("GET", KEYS[1])
  return redis.status_reply("OK")
end
return holder and -1 or 0
