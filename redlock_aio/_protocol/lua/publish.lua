-- Put before scripts that wake clients. A member is "client/number", and each client has a channel.
-- publish(prefix, member, text) tells the client of a member, and returns whether it listens.
-- The channels of a master of a Cluster have a tag in their prefix. PUBLISH would take the message to
-- all nodes there, SPUBLISH takes it only to the replicas of this one. Redis before 7.0 does not have
-- it, and a user may lack the permission: the client has sent SUBSCRIBE then. A client without a
-- permission for either changes the lock all the same.
local function publish(prefix, member, text)
  local channel = prefix .. string.match(member, "^[^/]*")
  local listen = string.find(prefix, "{", 1, true) and redis.pcall("SPUBLISH", channel, text)
  if type(listen) ~= "number" or listen == 0 then
    listen = redis.pcall("PUBLISH", channel, text)
  end
  return type(listen) == "number" and listen > 0
end
