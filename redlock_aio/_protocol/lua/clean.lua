-- Put before scripts that enter a queue; see enqueue.lua.

-- Returns whether more than so many members of a queue wait. Readers that were granted their shares
-- in the queue stay there for a while, marked, and wait no more.
local function is_full(queue, most)
  local members, waiting = redis.call("ZRANGE", queue, 0, -1, "WITHSCORES"), 0
  for i = 1, #members, 2 do
    if string.sub(members[i], 1, 1) == "~" and members[i + 1] % 1 == 0 then
      waiting = waiting + 1
    end
  end
  return waiting > most
end

-- Removes up to 100 dead members from a queue, and returns whether it is empty. More than 100 in a
-- queue are removed by several requests, so that none of them holds up the master for long.
local function clean(queue, ms)
  local last = redis.call("ZRANGE", queue, -1, -1, "WITHSCORES")
  if not last[2] or tonumber(last[2]) <= 4e15 - ms then
    return not last[2]
  end
  local over = string.format("(%.0f", 4e15 - ms)
  local dead = redis.call("ZRANGEBYSCORE", queue, over, "+inf", "LIMIT", 0, 100)
  for i = 1, #dead do
    dead[#dead + 1] = string.sub(dead[i], 2)
  end
  redis.call("ZREM", queue, unpack(dead))
  return not redis.call("ZRANGE", queue, 0, 0)[1]
end
