-- Behind fence.lua.
-- ARGV: for each command the number of its words, and these; the last is the token.
-- Answers what the commands answer.
local replies, at = {}, 1
while at < #ARGV do
  local last = at + ARGV[at]
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, last))
  at = last + 1
end
return replies
