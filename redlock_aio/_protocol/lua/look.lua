-- KEYS: the locks.
-- Answers their values in this order, cut after 2049 bytes (see release.lua), and nothing in the place of
-- one that is not there. If one of them is no string, the answer is an error; all are read before
-- that, so that a connection that asked to be told of changes is told of those of any key.
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
