-- KEYS[1]: the lock.  ARGV[1]: the token.
-- Only our own value goes; the key of whoever came after us stays.
if redis.call("GET", KEYS[1]) == ARGV[1] then
  redis.call("DEL", KEYS[1])
  return redis.status_reply("OK")
end
return 0
