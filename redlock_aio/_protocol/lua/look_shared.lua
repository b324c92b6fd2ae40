-- KEYS[1]: the lock, KEYS[2]: its shares.  ARGV[1]: the token of a reader.
-- Returns {the token} if its share lasts, {the lock's value, cut after 2049 bytes} if another holder
-- has the lock, else {nil}.
local holder = get(KEYS[1])
if type(holder) == "table" then
  return holder -- the error: it is no string, so it can't be a lock
elseif holder and holder ~= SHARED then
  return {string.sub(holder, 1, 2049)}
end
return {holder and lasts(KEYS[2], ARGV[1], clock()) and ARGV[1]}
