-- KEYS[1]: the lock.  ARGV[1]: the token, ARGV[2]: the new ttl in ms.
-- Only a key that is still ours; one that is gone is never set again here.
if redis.call("GET", KEYS[1]) == ARGV[1] then
  redis.call("PEXPIRE", KEYS[1], ARGV[2])
  -- To be told of the next change: ours has ended what the first GET began.
  redis.call("GET", KEYS[1])
  return redis.status_reply("OK")
end
return 0
