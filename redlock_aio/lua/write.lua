-- Put behind fence.lua.
-- ARGV: for each command the number of its words, and the words; the last argument is the token.
-- Returns the replies of the commands.
local replies, at = {}, 1
while at < #ARGV do
  local last = at + ARGV[at]
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, last))
  at = last + 1
end
return replies
