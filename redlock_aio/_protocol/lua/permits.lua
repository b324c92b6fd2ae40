-- Put before the scripts of semaphores. A permit is a lock whose name ends in its number. It has a
-- queue of its own, see enqueue.lua, whose name ends in the same number. The index of a semaphore is
-- a sorted set: the number of each permit for which somebody waits in vain, with the place of the first
-- such member. That is the first one that waits for a permit that is held. Of a free permit it is the
-- second one if the first was called for it, else the first: the permit has ended by itself, or the
-- member that was called has died. The place in the index tells which. So the first element leads to
-- the member that has waited for longest. The name of a member ends in "p" and the number of permits
-- that its program knows: it can take none whose number is not below that.
local INDEX_LIVES = 5000 -- ms without a change, longer than members live without a request
local MOST_DEAF = 100 -- how many members a release calls in vain for one
local deaf = {} -- the members that this script has called in vain
local MOST_CALLED = 100 -- how many first members of free permits a release calls
local called = 0

-- Returns what the names of all permits, or all queues, begin with. "^.*" goes to the end of the name
-- and comes back to the number; without it each digit of the name would be tried.
local function unnumbered(name)
  return string.match(name, "^.*#")
end

local function numbered(name, number)
  return unnumbered(name) .. number
end

local function number_of(lock)
  return string.match(lock, "^.*#(%d+)$")
end

-- Returns what ZSCORE does, by commands that the user of a fair lock may use.
local function score(queue, member)
  local rank = redis.call("ZRANK", queue, member)
  return rank and redis.call("ZRANGE", queue, rank, rank, "WITHSCORES")[2]
end

local function can_take(member, number)
  return tonumber(string.match(member, "p(%d+)$")) > number
end

-- Returns the first member of a queue that waits, and the next one that can take the permit with a
-- number, if one is given, each with its place. A member that was granted the permit waits no more,
-- nor does a dead one, or one that was called in vain.
local function waiting(queue, ms, number)
  local first, place
  for from = 0, math.huge, 10 do
    local members, lives = redis.call("ZRANGE", queue, from, from + 9, "WITHSCORES"), {}
    for i = 1, #members, 2 do
      lives[members[i]] = members[i + 1] -- of a short queue also the deadlines
    end
    for i = 1, #members, 2 do
      local member = members[i]
      if string.sub(member, 1, 1) == "~" then
        return first, place
      end
      local live = tonumber(lives["~" .. member] or score(queue, "~" .. member))
      if live and live % 1 == 0 and live <= 4e15 - ms and not deaf[member] then
        if not first then
          first, place = member, tonumber(members[i + 1])
        elseif not number or can_take(member, number) then
          return first, place, member, tonumber(members[i + 1])
        end
      end
    end
    if #members < 20 then
      return first, place
    end
  end
end

-- Brings the index up to date with a permit: with the place of the member that waits in vain, if any.
local function note(index, number, place)
  if place then
    redis.call("ZADD", index, string.format("%.0f", place), number)
    redis.call("PEXPIRE", index, INDEX_LIVES)
  else
    redis.call("ZREM", index, number)
  end
end

-- Returns the first member of a permit's queue that waits in vain, and its place; with a number, the
-- first that can take that permit. noted is the place that the index has for the permit. If this is
-- free, and the place is that of the first member, no release has called that one: it counts too, and
-- the third value is true. Without noted it counts as called.
local function in_vain(lock, queue, ms, noted, number)
  local first, place, second, next_place = waiting(queue, ms, number)
  local held = first and get(lock)
  if first and (held or place == noted) and (not number or can_take(first, number)) then
    return first, place, not held
  end
  return second, next_place
end

-- Publishes a member and the permit that it may have; a client that does not want it any more says so
-- by leave_permit. Returns whether the client listens: one that has just come may not do so yet.
local function call(lock, prefix, member)
  return publish(prefix, member, member .. " " .. lock)
end

-- Returns the member that has waited in vain for longest, of those that can take the permit with a
-- number: the number of the permit for which it waits, the member, and its place; nil if there is none.
-- With the prefix of the channels, it also calls the first members of free permits that were not called,
-- for their own permits, as far as they come before the one that is returned. They would find out by
-- themselves, but that one would pass them. Without the prefix they are left out: their own permits are
-- free, and if they are dead, they must not keep anybody from other permits.
local function oldest(index, lock, queue, ms, number, prefix)
  local rank, changed, where, best, since = 0, 0, nil, nil, math.huge
  while changed < 100 do
    local entry = redis.call("ZRANGE", index, rank, rank, "WITHSCORES")
    local from, noted = entry[1], tonumber(entry[2])
    if not from then
      break
    end
    local its, line = numbered(lock, from), numbered(queue, from)
    local member, place, forgotten = in_vain(its, line, ms, noted)
    if forgotten and prefix and called < MOST_CALLED then
      called = called + 1
      call(its, prefix, member)
      member, place, forgotten = in_vain(its, line, ms)
    end
    if place ~= noted then
      note(index, from, place) -- who had this place is dead, or was called just now
      changed = changed + 1
    else
      local next_entries_are_later = not forgotten and can_take(member, number)
      if not next_entries_are_later then
        member, place = in_vain(its, line, ms, not forgotten and noted, number)
        rank, changed = rank + 1, changed + (forgotten and 1 or 0)
      end
      if member and place < since then
        where, best, since = from, member, place
      end
      if next_entries_are_later then
        break
      end
    end
  end
  return where, best, best and since
end

-- Moves a member from the queue of one permit to that of another one, at its place.
local function move(lock, queue, index, from, member, place, ms)
  local theirs, live = numbered(queue, from), "~" .. member
  local deadline = score(theirs, live)
  redis.call("ZREM", theirs, member, live)
  redis.call("ZADD", queue, string.format("%.0f", place), member, deadline, live)
  redis.call("PEXPIRE", queue, INDEX_LIVES)
  local _, next_place = in_vain(numbered(lock, from), theirs, ms)
  note(index, from, next_place)
  _, next_place = in_vain(lock, queue, ms)
  note(index, number_of(lock), next_place)
end

-- Calls the next member for a permit that has become free: the first of its queue; but if another
-- member has waited more than twice as long for another permit, or nobody waits for this one, that
-- member, which is moved to this queue. The masters agree most often, because the places are the same
-- on all of them. So a member is passed only by those that have waited for at least half as long.
-- One that does not listen is not moved: it would not know, and keep the permit from the others. The
-- next one is tried, which would otherwise be passed for as long as a dead one is before it.
-- With ends, the permit is not free yet, but in so many ms: nobody comes from one that ends sooner.
local function hand_over(lock, queue, index, now, prefix, ends)
  local ms = math.floor(now / 1000)
  local member, place, _, next_place = waiting(queue, ms)
  local number = number_of(lock)
  note(index, number, ends and place or next_place)
  for _ = 1, MOST_DEAF do
    local from, other, since = oldest(index, lock, queue, ms, tonumber(number), prefix)
    local longer = not ends or from and redis.call("PTTL", numbered(lock, from)) > ends
    -- The second of this queue is no other: its first is called, also if both have come after now.
    local theirs = other and from ~= number
    local older = theirs and longer and (not member or now - since > 2 * (now - place))
    if not older then
      break
    elseif call(lock, prefix, other) then
      return move(lock, queue, index, from, other, since, ms)
    end
    deaf[other] = true
  end
  if member then
    call(lock, prefix, member)
  end
end
