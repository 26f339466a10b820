-- Purpose: read all agents that are known.
-- KEYS:    1 prefix
-- ARGV:    none
-- Reply:   a list of {name, seen (us), report (JSON), released jobs, running jobs}
-- States:  none
if not EPOCH then return NO_EPOCH end
local found = {}
local seen = redis.call("ZRANGE", KEY.agents, 0, -1, "WITHSCORES")
for i = 1, #seen, 2 do
  local name = seen[i]
  found[#found + 1] = {name, text(tonumber(seen[i + 1])), redis.call("HGET", KEY.agent .. name, "report"),
    redis.call("ZCARD", KEY.released .. name), redis.call("SCARD", KEY.running .. name)}
end
return found
