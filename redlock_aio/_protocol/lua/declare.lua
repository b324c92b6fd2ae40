-- KEYS[1]: the sets of masters that programs use with one key_prefix: a line "since at lasts text"
-- for each, in the order of their last declarations. A set counts for lasts ms after at; times are
-- ms of this master's clock.
-- ARGV[1]: "read"; "write", to declare the caller's set; "withdraw", to remove that set if it was
-- declared only once.
-- ARGV[2]: the caller's set, ARGV[3]: for how many ms it has been in use elsewhere, ARGV[4]: lasts,
-- ARGV[5]: the declared set that the caller's set replaces, or nothing.
-- Returns {text, {for how many ms the set has been in use, how many ms ago it was declared last},
-- text, ...}, in that order.
local kept = redis.pcall("GET", KEYS[1])
if type(kept) == "table" and not string.find(kept.err, "WRONGTYPE", 1, true) then
  return kept -- the error: this client may not read the key
end
if type(kept) ~= "string" or #kept > 262144 then
  kept = "" -- not written by this library
end
local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local writes, withdraws = ARGV[1] == "write", ARGV[1] == "withdraw"
local since, sets, taken = now - tonumber(ARGV[3]), {}, {}
for begun, at, lasts, text in string.gmatch(kept, "(%d+) (%d+) (%d+) ([^\n]+)\n") do
  begun, at, lasts = tonumber(begun), tonumber(at), tonumber(lasts)
  -- An instant far in the future was written before the clock was set back.
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
  -- No two sets have the same age, so that of two programs only one believes to be the first.
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
  -- A server whose memory is full refuses the write; the reply lists the sets all the same.
  redis.pcall("SET", KEYS[1], table.concat(lines), "PX", string.format("%.0f", longest))
end
return reply
