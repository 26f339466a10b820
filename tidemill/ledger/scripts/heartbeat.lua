-- Purpose: an agent says that it lives; one that is unknown is registered. Released jobs of a draining one go back.
-- KEYS:    1 prefix
-- ARGV:    1 agent, 2 pool, 3 state, 4 report (JSON)
-- Reply:   {wanted runners (JSON, or "" when nobody said), drain (0, 1)}
-- States:  released -> queued (at most 200 in a call)
if not EPOCH then return NO_EPOCH end
local agent = ARGV[1]
redis.call("HSET", KEY.agent .. agent, "pool", ARGV[2], "state", ARGV[3], "report", ARGV[4])
redis.call("ZADD", KEY.agents, NOW, agent)
local v = redis.call("HMGET", KEY.agent .. agent, "wanted", "drain")
local drain = v[2] or redis.call("SISMEMBER", KEY.draining, ARGV[2]) == 1
if drain or ARGV[3] == "draining" then
  if redis.call("EXISTS", KEY.released .. agent) == 1 then take_back(agent, 200, "agent_drained") end
end
return {v[1] or "", drain and 1 or 0}
