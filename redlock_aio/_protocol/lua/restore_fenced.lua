-- KEYS: the locks, and then their counters.
-- ARGV[1]: the token, ARGV[2]: the ttl in ms, ARGV[3]: the fencing token in 16 digits, ARGV[4]: the
-- ceiling in 16 digits, to which a majority has lifted its counters for this holder, or the fencing
-- token again; ARGV[5]: for how many ms a counter is kept.
-- Sets the locks again where nobody has them. Counters up to the ceiling are marked with the
-- fencing token, see lift.lua. With a counter beyond the ceiling the locks are set all the same, so
-- that no other client raises the counter any more, but the next extension does not count here.
-- A lock that lasts longer already is left so: an extension that came before may have been
-- counted.
-- Returns OK if the next extension counts, 0 if another holder has a lock, else the highest
-- counter's value.
local locks, own, ceiling = #KEYS / 2, tonumber(ARGV[3]), tonumber(ARGV[4])
local mark, beyond, values, marked = ".0000" .. ARGV[3], 0, {}, {}
for i = 1, locks do
  local holder = redis.call("GET", KEYS[i])
  if holder and holder ~= ARGV[1] then
    return 0
  end
  local counter = redis.call("GET", KEYS[locks + i])
  values[i] = math.floor(tonumber(counter or 0))
  marked[i] = values[i] <= own or string.sub(counter, -21) == mark
  if not marked[i] and values[i] > ceiling then
    beyond = math.max(beyond, values[i])
  end
end
for i = 1, locks do
  if redis.call("PTTL", KEYS[i]) < tonumber(ARGV[2]) then
    redis.call("SET", KEYS[i], ARGV[1], "PX", ARGV[2])
  end
  if beyond == 0 then
    local counter = KEYS[locks + i]
    if not marked[i] then
      redis.call("SET", counter, ARGV[4] .. mark, "PX", ARGV[5])
    elseif values[i] < own then
      redis.call("SET", counter, ARGV[3], "PX", ARGV[5])
    else
      redis.call("PEXPIRE", counter, ARGV[5])
    end
  end
  -- Read again for client tracking: this script's own write has ended the tracking that the first
  -- GET began, and the holder must be notified of the next change.
  redis.call("GET", KEYS[i])
end
return beyond > 0 and beyond or redis.status_reply("OK")
