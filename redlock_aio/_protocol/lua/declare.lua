-- KEYS[1]: the sets of masters that programs use with one key_prefix: a line "since at lasts text" for each, in
-- the order in which they were declared last. A set counts for lasts ms after at; times in ms of this master's clock.
-- ARGV[1]: "read"; "write", to declare our set; "withdraw", to take back what we alone have declared, and only once.
-- ARGV[2]: our set, ARGV[3]: for how many ms it has been in use elsewhere, ARGV[4]: lasts,
-- ARGV[5]: the set that ours stands for from now on, or nothing.
-- Answers {text, {for how many ms it has been in use, how many ms ago it was declared last}, text, ...}, in that order.
local kept = redis.pcall("GET", KEYS[1])
if type(kept) == "table" and not string.find(kept.err, "WRONGTYPE", 1, true) then
  return kept -- the error: we may not read it
end
if type(kept) ~= "string" or #kept > 262144 then
  kept = "" -- not ours
end
local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local writes, withdraws = ARGV[1] == "write", ARGV[1] == "withdraw"
local since, sets, taken = now - tonumber(ARGV[3]), {}, {}
for begun, at, lasts, text in string.gmatch(kept, "(%d+) (%d+) (%d+) ([^\n]+)\n") do
  begun, at, lasts = tonumber(begun), tonumber(at), tonumber(lasts)
  -- An instant far in the future is one of a clock that was set back.
  if math.abs(now - at) < lasts and lasts < 1e12 and begun < now + 1000 then
    if writes and text == ARGV[2] then
      since = math.min(since, begun)
    elseif not (writes and text == ARGV[5] or withdraws and text == ARGV[2] and begun >= at) then
      sets[#sets + 1] = {begun, at, lasts, text}
      taken[begun] = true
    end
  end
end
if writes then
  -- No two are of the same age, so that of two programs not both believe to be the first.
  while taken[since] do
    since = since + 1
  end
  sets[#sets + 1] = {since, now, tonumber(ARGV[4]), ARGV[2]}
end
local lines, reply, longest = {}, {}, 1
for i = math.max(1, #sets - 63), #sets do
  local begun, at, lasts, text = unpack(sets[i])
  lines[#lines + 1] = string.format("%.0f %.0f %.0f %s\n", begun, at, lasts, text)
  reply[#reply + 1] = text
  reply[#reply + 1] = {math.max(now - begun, -1000), math.max(now - at, 0)}
  longest = math.max(longest, at + lasts - now)
end
if writes or withdraws then
  -- A server whose memory is full refuses it; what is in use there is known all the same.
  redis.pcall("SET", KEYS[1], table.concat(lines), "PX", string.format("%.0f", longest))
end
return reply
