-- Sets the restart guard's marker over the value that its writer has read, and over no other.
-- KEYS: the marker. ARGV: its new value, the value that was read (empty for none), the position of
-- the last byte that was read.
-- Returns OK, or nil if the marker has changed since: another program knows more, or the keys
-- were flushed, which a new marker would hide.
if redis.call("GETRANGE", KEYS[1], 0, ARGV[3]) ~= ARGV[2] then
  return nil
end
return redis.call("SET", KEYS[1], ARGV[1])
