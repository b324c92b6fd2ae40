-- KEYS: as for leave_permit.lua, of the permit with the number 0.
-- ARGV[1]: how many permits there are, ARGV[2]: the most that a semaphore has.
-- Returns {the number of members that wait for any permit, and then for each permit that is held its
-- number, its value, cut after 2049 bytes (see release.lua), its ttl in ms}. Changes nothing. It looks
-- for holders of all numbers, because programs may use different ones. A key of another type in the
-- place of the index or of a queue counts as missing.
local time = redis.call("TIME")
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local permit, queue = string.gsub(KEYS[1], "%d+$", ""), string.gsub(KEYS[2], "%d+$", "")
local reply, last, waiters, seen, counted = {0}, 1, 0, {}, {}

local function count(number, value)
  counted[number] = true
  -- An error has no elements.
  local members = redis.pcall("ZRANGE", queue .. number, 0, -1, "WITHSCORES")
  for i = 1, #members, 2 do
    local deadline = 4e15 - members[i + 1]
    -- A holder that was granted the permit in the queue stays there, and is marked as granted. A
    -- member that follows to another permit may still be in the queue of the one before.
    local waits = deadline >= ms and not (value and deadline % 1 > 0)
    if string.sub(members[i], 1, 1) == "~" and waits and not seen[members[i]] then
      seen[members[i]], waiters = true, waiters + 1
    end
  end
end

for number = 0, ARGV[2] - 1 do
  local value = get(permit .. number)
  if type(value) == "table" then
    return value -- the error: no permit can be acquired here
  end
  if value then
    reply[last + 1], reply[last + 2] = number, string.sub(value, 1, 2049)
    reply[last + 3] = redis.call("PTTL", permit .. number)
    last = last + 3
  end
  if value or number < tonumber(ARGV[1]) then
    count(number, value)
  end
end
-- Permits beyond these, whose holders have just gone.
for _, contended in ipairs(redis.pcall("ZRANGE", KEYS[3], 0, -1)) do
  local number = tonumber(contended)
  if number and not counted[number] then
    count(number)
  end
end
reply[1] = waiters
return reply
