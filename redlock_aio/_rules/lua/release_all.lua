-- KEYS: the locks.  ARGV[1]: the token.
-- Only our own values go; those of whoever came after us stay, and the one that stays for longest is
-- told of: its value, cut after 2049 bytes (see release.lua), and its ttl in ms. Answers OK if all were ours, 0 if some were gone.
local gone, other, ends, failed = false, false, 0, nil
for i = 1, #KEYS do
  local holder = get(KEYS[i])
  if type(holder) == "table" then
    -- No lock at all; that must not keep us from freeing the others.
    failed = holder
  elseif holder == ARGV[1] then
    redis.call("DEL", KEYS[i])
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
