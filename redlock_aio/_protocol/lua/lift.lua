-- KEYS: the locks, and then their counters.
-- ARGV[1]: the token, ARGV[2]: the fencing token of its holder in 16 digits, ARGV[3]: the ceiling,
-- the least value of the counters afterwards, in 16 digits, ARGV[4]: for how many ms a counter is
-- kept.
-- Raises the counters in the holder's name: its fencing token is written behind their value, as a
-- fraction. A script that reads the whole as a number reads the counter. The next grant overwrites
-- it.
-- Returns OK if all locks have the token, 0 if not, the highest counter's value if that is beyond
-- the fencing token and not marked with it; see extend.lua.
local locks, own, ceiling = #KEYS / 2, tonumber(ARGV[2]), tonumber(ARGV[3])
local mark, beyond, low = ".0000" .. ARGV[2], 0, {}
for i = 1, locks do
  if redis.call("GET", KEYS[i]) ~= ARGV[1] then
    return 0
  end
  local counter = redis.call("GET", KEYS[locks + i])
  local value = math.floor(tonumber(counter or 0))
  if value > own and string.sub(counter, -21) ~= mark then
    beyond = math.max(beyond, value)
  end
  low[i] = value < ceiling
end
if beyond > 0 then
  return beyond
end
for i = 1, locks do
  if low[i] then
    redis.call("SET", KEYS[locks + i], ARGV[3] .. mark, "PX", ARGV[4])
  end
end
return redis.status_reply("OK")
