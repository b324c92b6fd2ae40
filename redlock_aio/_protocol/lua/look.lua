-- KEYS: the locks.
-- Returns their values in this order, cut after 2049 bytes (see release.lua), and nil in the place
-- of a lock that does not exist. If one of them is no string, returns an error; all keys are read
-- before that, so that a connection with client tracking is notified of changes of each key.
local values, failed = {}, nil
for i = 1, #KEYS do
  local value = get(KEYS[i])
  if type(value) == "table" then
    failed = value
  else
    values[i] = value and string.sub(value, 1, 2049)
  end
end
return failed or values
