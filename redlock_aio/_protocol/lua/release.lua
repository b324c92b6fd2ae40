-- KEYS: the locks.  ARGV[1]: the token.
-- Deletes the locks that have our token; those of others stay. No lock has a value of more than 2048 bytes,
-- so that a value that was cut after 2049 bytes is none of ours.
-- Answers OK if all were ours, 0 if some were gone, and if others have some, of the one that stays for
-- longest {value, cut after 2049 bytes, ttl in ms}.
local gone, other, ends, failed = false, false, 0, nil
for i = 1, #KEYS do
  local holder = get(KEYS[i])
  if holder == ARGV[1] then
    redis.call("DEL", KEYS[i])
  elseif type(holder) == "table" then
    failed = holder -- no lock; the others are released all the same
  elseif holder then
    local left = redis.call("PTTL", KEYS[i])
    if not other or ends >= 0 and (left < 0 or left > ends) then
      other, ends = holder, left
    end
  else
    gone = true
  end
end
if failed then
  return failed
end
if other then
  return {string.sub(other, 1, 2049), ends}
end
return gone and 0 or redis.status_reply("OK")
