-- What is put before scripts that read keys which others may have set.
-- Returns the value of a key, false if there is none. Of a key of another type, the error as a table, in
-- words that name the type; without the permission to ask for it (+type) as "another type".
local function get(key)
  local value = redis.pcall("GET", key)
  if type(value) == "table" and string.find(value.err, "WRONGTYPE", 1, true) then
    local kind = redis.pcall("TYPE", key).ok
    return {err = "WRONGTYPE the key holds " .. (kind and "a " .. kind or "another type") .. ", not a lock"}
  end
  return value
end
