-- KEYS[1]: the permit with the number 0, KEYS[2]: its queue, KEYS[3]: the index, see permits.lua, and
-- with a fencing token KEYS[4]: its counter. The names of the other permits differ in the number.
-- ARGV[1]: the token, ARGV[2]: the ttl in ms, ARGV[3]: how many permits there are, ARGV[4]: the number
-- of the permit to try first, ARGV[5]: how far to step from one to the next, ARGV[6]: the us of this
-- master's clock after which the command is too late; with a counter also what enqueue.lua gets:
-- ARGV[7]: the proposed value, ARGV[8]: by how many us it may be off this master's clock, ARGV[9]: for
-- how many ms the counter is kept.
-- Grants the first permit that nobody holds, or waits for and can take.
-- Returns {code, the permit's number, us of this master's clock, the counter's value, ttl in ms, the
-- permit's value, cut after 2049 bytes}. The codes: 0 granted, 1 not granted: then all but the code and
-- the time are about one with a short queue, 4 too late.
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
local asked = tonumber(ARGV[7] or now)
if now > tonumber(ARGV[6]) or math.abs(asked - now) > tonumber(ARGV[8] or 0) then
  return {4, 0, now, 0, -2, false}
end
local lock, queue, permits = KEYS[1], KEYS[2], tonumber(ARGV[3])
local number, step, ms = tonumber(ARGV[4]), tonumber(ARGV[5]), math.floor(now / 1000)
local names, lines = unnumbered(lock), unnumbered(queue)
-- Somebody who can take whatever this client can comes first, wherever a permit is free.
for _ = 1, oldest(KEYS[3], lock, queue, ms, permits - 1) and 0 or permits do
  local name = names .. number
  local has = get(name)
  if type(has) == "table" then
    return has
  elseif not has and clean(lines .. number, ms) and not oldest(KEYS[3], lock, queue, ms, number) then
    local value = 0
    if ARGV[7] then
      local counter = numbered(KEYS[4], number)
      value = math.max(tonumber(redis.call("GET", counter) or 0) + 1, asked)
      redis.call("SET", counter, string.format("%016.0f", value), "PX", ARGV[9])
    end
    redis.call("SET", name, ARGV[1], "PX", ARGV[2])
    return {0, number, now, value, -2, false}
  end
  number = (number + step) % permits
end
local best, fewest = number, math.huge
for _ = 1, math.min(permits, 4) do -- more of them make no difference
  local members = redis.call("ZCARD", lines .. number)
  if members < fewest then
    best, fewest = number, members
  end
  number = (number + step) % permits
end
local name = names .. best
local holder = get(name)
if type(holder) == "table" then
  return holder
end
return {1, best, now, 0, redis.call("PTTL", name), holder and string.sub(holder, 1, 2049)}
