-- Put before scripts after which waiters may get the lock; see enqueue.lua. The name of a member that
-- wants a share ends in "r".
-- wake(queue, first, prefix, skip) publishes to the first member of a queue, and if that wants a
-- share, to all that want one before the first member that wants the lock for itself: to 100 at
-- most, the others get their shares by their heartbeats. Those that have a share already are not
-- woken, nor is skip.
local function wake(queue, first, prefix, skip)
  if string.sub(first, -1) ~= "r" then
    return publish(prefix, first, first)
  end
  for _, member in ipairs(redis.call("ZRANGE", queue, 0, 99)) do
    if string.sub(member, -1) ~= "r" or string.sub(member, 1, 1) == "~" then
      return
    end
    local live = redis.pcall("ZSCORE", queue, "~" .. member)
    if member ~= skip and not (type(live) == "string" and live % 1 > 0) then
      publish(prefix, member, member)
    end
  end
end
