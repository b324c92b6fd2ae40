-- Put before scripts about locks that may be shared by readers.
-- While a lock is shared its value is SHARED, and its set has one element for each reader: the
-- reader's value, whose score is its deadline in ms of this master's clock. A share counts only
-- while the lock has this value and its own deadline is not over.
local SHARED = "redlock_aio:shared"

local function clock()
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns whether the share of a token lasts, in the set of a lock whose value is SHARED.
local function lasts(set, token, ms)
  local ends = redis.call("ZSCORE", set, token)
  return ends and tonumber(ends) >= ms or false
end
