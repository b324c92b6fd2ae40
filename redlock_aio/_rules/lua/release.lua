-- KEYS[1]: the lock.  ARGV[1]: the token.
-- Only our own value goes; the key of whoever came after us stays, and is told of:
-- its value and its ttl in ms, or 0 if there is no key at all.
local holder = redis.call("GET", KEYS[1])
if holder == ARGV[1] then
  redis.call("DEL", KEYS[1])
  return redis.status_reply("OK")
end
if holder then
  return {holder, redis.call("PTTL", KEYS[1])}
end
return 0
