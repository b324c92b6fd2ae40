-- KEYS[1]: what programs with one key_prefix have written about their masters: "since at lasts
-- text" on a line for each text, in the order of since. A line counts for lasts ms after at; times
-- are ms of this master's clock.
-- ARGV[1] to ARGV[4]: a text to write, its lasts, how many ms ago its at was, and the since that it
-- had before it was deleted, 0 if it was not; and so on for more texts. Without any, the lines are
-- only read.
-- Returns {how many of the texts were there, text, {since, for how many ms more it counts, lasts},
-- text, ...} in the order of since.
local kept = redis.pcall("GET", KEYS[1])
if type(kept) == "table" and not string.find(kept.err, "WRONGTYPE", 1, true) then
  return kept -- the error: this client may not read the key
end
if type(kept) ~= "string" or #kept > 262144 then
  kept = "" -- not written by this library
end
local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lines, of, taken, found = {}, {}, {}, 0
for since, at, lasts, text in string.gmatch(kept, "(%d+) (%d+) (%d+) ([^\n]+)\n") do
  since, at, lasts = tonumber(since), tonumber(at), tonumber(lasts)
  -- An instant far in the future was written before the clock was set back.
  if math.abs(now - at) < lasts and lasts < 1e12 and since < now + 1000 and not of[text] then
    lines[#lines + 1] = {since, at, lasts, text}
    of[text], taken[since] = lines[#lines], true
  end
end
for i = 1, #ARGV, 4 do
  local text, lasts, since = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 3])
  local at = now - tonumber(ARGV[i + 2])
  local line = of[text]
  if line then
    found = found + 1
    if at + lasts > line[2] + line[3] then -- programs with a longer max_ttl let it count longer
      line[2], line[3] = at, lasts
    end
  elseif #lines < 256 then -- one that finds no room comes later, when others have run out
    if since == 0 or since > now then
      since = now
    end
    while taken[since] do -- of two programs only one came first
      since = since + 1
    end
    lines[#lines + 1] = {since, at, lasts, text}
    of[text], taken[since] = lines[#lines], true
  end
end
table.sort(lines, function(one, other)
  return one[1] < other[1]
end)
local stored, reply, longest = {}, {found}, 1
for i, line in ipairs(lines) do
  local since, at, lasts, text = unpack(line)
  local left = at + lasts - now
  stored[i] = string.format("%.0f %.0f %.0f %s\n", since, at, lasts, text)
  reply[#reply + 1] = text
  reply[#reply + 1] = {since, left, lasts}
  longest = math.max(longest, left)
end
if #ARGV > 0 then
  -- Not pcall: a server that is full, or lacks replicas, refuses the write. The reply would list
  -- lines that are not there, and the program would vote by a declaration that nobody can read.
  redis.call("SET", KEYS[1], table.concat(stored), "PX", string.format("%.0f", longest))
end
return reply
