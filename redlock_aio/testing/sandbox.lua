-- The environment that Redis offers to a script: `redis`, KEYS and ARGV, and of Lua no access to
-- files, to other programs or to Python. A script that sets a global variable, or reads one that
-- does not exist, fails as in Redis.
-- The argument is a function that executes a command and returns the reply.
-- Returns two functions:
-- load(text) compiles a script; it returns the script, or nil and the error message.
-- run(script, keys, ...) runs one, with the number of its keys, the keys and the arguments; it
-- returns the script's reply.
-- In both directions a reply is: true for OK; true, the length and the elements for a list; for an
-- error and for another status a table with `err` or `ok`; nil for nothing; else a string or a
-- number.
local execute = ...
local redis = {}

local function reply(value, length, ...)
  if value == true then
    return length and {...} or {ok = "OK"}
  elseif value == nil then
    return false -- in Redis a reply that is nothing is false
  end
  return value
end

function redis.pcall(...)
  return reply(execute(...))
end

function redis.call(...)
  local value = reply(execute(...))
  if type(value) == "table" and value.err then
    error(value, 0)
  end
  return value
end

function redis.status_reply(text)
  return {ok = text}
end

local offered = {redis = redis, KEYS = {}, ARGV = {}}
for _, name in ipairs({
  "assert", "error", "getmetatable", "ipairs", "math", "next", "pairs", "pcall", "rawequal", "rawget", "rawset",
  "select", "setmetatable", "string", "table", "tonumber", "tostring", "type", "unpack", "xpcall",
}) do
  offered[name] = _G[name]
end
setmetatable(offered, {
  __newindex = function(_, name)
    error("Script attempted to create global variable '" .. tostring(name) .. "'", 2)
  end,
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})

local function load(text)
  local script, problem = loadstring(text, "@user_script")
  return script and setfenv(script, offered), problem
end

local function returned(succeeded, value)
  if type(value) == "table" then
    if value.ok == "OK" then
      return true
    elseif value.ok or value.err then
      return value
    end
    local length = 0
    while value[length + 1] ~= nil do
      length = length + 1
    end
    return true, length, unpack(value, 1, length)
  elseif succeeded then
    return value == true and 1 or value
  elseif type(value) == "userdata" then
    error(value, 0) -- a Python exception, which is a defect of the fake and no reply
  end
  return {err = "ERR " .. tostring(value)}
end

local function run(script, keys, ...)
  local words = {...}
  offered.KEYS, offered.ARGV = {unpack(words, 1, keys)}, {unpack(words, keys + 1)}
  return returned(pcall(script))
end

return load, run
