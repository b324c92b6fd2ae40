-- KEYS[1]: the lock.  ARGV[1]: the token.
-- Only our own value goes; the key of whoever came after us stays, and is told of:
-- its value, cut after 2049 bytes, and its ttl in ms, or 0 if there is no key at all.
-- No lock has a value of more than 2048 bytes, so that a cut one is told from all of ours.
local holder = get(KEYS[1])
if holder == ARGV[1] then
  redis.call("DEL", KEYS[1])
  return redis.status_reply("OK")
end
if type(holder) == "table" then
  return holder -- the error: it is no string, so it is nobody's lock
end
if holder then
  return {string.sub(holder, 1, 2049), redis.call("PTTL", KEYS[1])}
end
return 0
