-- KEYS[1]: the lock, KEYS[2]: its counter.
-- ARGV[1]: the token, ARGV[2]: the ttl in ms, ARGV[3]: the counter's value that is proposed, which
-- is the time of all masters in us, ARGV[4]: the us of this master's clock after which it came too
-- late, ARGV[5]: by how many us the proposal may be off this master's clock, ARGV[6]: for how many
-- ms a counter is kept.
-- Answers the counter's new value if it grants the lock, 0 if somebody has it, {us of this
-- master's clock} if the proposal makes no sense at this time.
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
local asked = tonumber(ARGV[3])
local lead = tonumber(ARGV[5])
if now > tonumber(ARGV[4]) or asked > now + lead or asked < now - lead then
  return {now}
end
if not redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then
  -- Ours already: nobody else can have changed the counter since.
  return redis.call("GET", KEYS[1]) == ARGV[1] and tonumber(redis.call("GET", KEYS[2])) or 0
end
local last = redis.call("SET", KEYS[2], ARGV[3], "GET", "PX", ARGV[6])
if not last or tonumber(last) < asked then
  return asked
end
local value = tonumber(last) + 1
-- Not tostring, which writes 1.7e+15.
redis.call("SET", KEYS[2], string.format("%.0f", value), "PX", ARGV[6])
return value
