-- Put before a script; the script runs only if no token higher than the writer's has been seen.
-- KEYS[#KEYS]: the key that stores the highest token, ARGV[#ARGV]: the writer's token.
-- Returns an error before anything is written: STALETOKEN and the highest token, or BADTOKEN if
-- one of the two is no token.
do
  local function number(text)
    -- tonumber alone would accept 0x10 and 1e3 as well.
    local value = string.find(text, "^%d+$") and tonumber(text)
    return value and value < 9007199254740992 and value
  end
  local fence, token = KEYS[#KEYS], ARGV[#ARGV]
  local seen = redis.pcall("GET", fence)
  if type(seen) == "table" and string.sub(seen.err, 1, 9) ~= "WRONGTYPE" then
    return seen
  end
  local highest = not seen and 0 or type(seen) == "string" and number(seen)
  if not highest then
    return {err = "BADTOKEN the fence's key holds something else"}
  end
  local mine = number(token)
  if not mine then
    return {err = "BADTOKEN the last argument must be a token"}
  end
  if mine < highest then
    return {err = "STALETOKEN " .. seen}
  end
  if mine > highest then
    redis.call("SET", fence, token)
  end
end
