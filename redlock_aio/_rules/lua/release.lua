-- KEYS[1]: the lock.  ARGV[1]: the token.
-- Only our own value goes; the key of whoever came after us stays.
if redis.call("GET", KEYS[1]) == ARGV[1] then
  return redis.call("DEL", KEYS[1])
end
return 0
