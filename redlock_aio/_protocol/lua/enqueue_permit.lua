-- KEYS[1]: the permit, KEYS[2]: its queue, KEYS[3]: the index, see permits.lua, and with a fencing
-- token KEYS[4]: its counter.
-- ARGV: as for enqueue.lua, but ARGV[9] is the number of permits, and the arguments for a fencing
-- token follow it.
-- Grants the permit to the member if it is the first in the permit's queue. The member that has
-- waited for longest, of those that can take as many permits, is moved to any permit that nobody holds
-- or waits for: that one's holder has died, or did not know of this member.
-- Returns the same as enqueue.lua, and one more code: 5 moved to the queue of another permit, whose
-- number is in the place of the ttl.
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
local asked = tonumber(ARGV[10] or now)
if now > tonumber(ARGV[7]) or math.abs(asked - now) > tonumber(ARGV[11] or 0) then
  return {4, -2, now, false, 0}
end
local lock, queue, index = KEYS[1], KEYS[2], KEYS[3]
local holder, ms = get(lock), math.floor(now / 1000)
if type(holder) == "table" then
  return holder
end
local mine = holder == ARGV[1]
local left = holder and not mine and redis.call("PTTL", lock) or -2
local shown = holder and not mine and string.sub(holder, 1, 2049)
local empty = clean(queue, ms)
local alone = ARGV[8] == "first" and empty and not holder
if not alone then
  local member, live, lives = ARGV[3], "~" .. ARGV[3], tonumber(ARGV[5])
  local new = redis.call("ZADD", queue, ARGV[4], member, 4e15 - ms - lives, live) > 0
  redis.call("PEXPIRE", queue, INDEX_LIVES)
  local rank, most = redis.call("ZRANK", queue, member), tonumber(ARGV[6])
  if new and not mine and rank >= most and is_full(queue, most) then
    redis.call("ZREM", queue, member, live)
    return {3, left, now, shown, 0}
  end
  if not (mine or rank == 0 and not holder) then
    local number, permits = number_of(lock), tonumber(ARGV[9])
    local _, place = in_vain(lock, queue, ms, not holder and tonumber(score(index, number)))
    note(index, number, place)
    local from, longest, since = oldest(index, lock, queue, ms, permits - 1)
    if from == number and longest == member then
      local names, lines = unnumbered(lock), unnumbered(queue)
      for other = 0, permits - 1 do
        local name, line = names .. other, lines .. other
        if not get(name) and clean(line, ms) then -- rarely: it is the cheaper question
          local _, wanted_by = oldest(index, lock, queue, ms, other)
          if wanted_by == member then
            move(name, line, index, number, member, since, ms)
            return {5, other, now, shown, 0}
          end
        end
      end
    end
    return {rank > 0 and 2 or 1, left, now, shown, 0}
  end
  -- The queue does not wait for a dead holder longer than for its permit.
  redis.call("ZADD", queue, 4e15 - ms - math.min(lives, tonumber(ARGV[2])) - 0.5, live)
end
local value = 0
if ARGV[10] then
  value = tonumber(redis.call("GET", KEYS[4]) or 0)
  if not mine or value == 0 then
    value = math.max(value + 1, asked)
  end
end
redis.call("SET", lock, ARGV[1], "PX", ARGV[2])
if ARGV[10] then
  redis.call("SET", KEYS[4], string.format("%016.0f", value), "PX", ARGV[12])
end
if alone then
  return {now, value}
end
local _, place = waiting(queue, ms)
note(index, number_of(lock), place)
return {0, tonumber(ARGV[2]), now, ARGV[1], value}
