-- KEYS: as for leave_permit.lua, of the permit with the number 0.
-- ARGV[1]: the token, ARGV[2]: how many permits there are, ARGV[3]: the number of the permit that the
-- token keeps, or "", ARGV[4]: the prefix of the channels, see leave.lua.
-- Deletes each other permit that has the token, and hands it over. Returns OK if there was
-- any, else 0.
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
local found = 0
local names = unnumbered(KEYS[1])
for number = 0, tonumber(ARGV[2]) - 1 do
  local lock = names .. number
  if tostring(number) ~= ARGV[3] and get(lock) == ARGV[1] then
    redis.call("DEL", lock)
    clean(numbered(KEYS[2], number), math.floor(now / 1000))
    hand_over(lock, numbered(KEYS[2], number), KEYS[3], now, ARGV[4])
    found = found + 1
  end
end
return found > 0 and redis.status_reply("OK") or 0
