-- Purpose: an agent gets no more jobs; its released ones are queued again.
-- KEYS:    1 prefix
-- ARGV:    1 agent, 2 limit of released jobs in this call, 3 leader's fence ("" = none)
-- Reply:   {jobs queued again, or -1 for an old fence; more (0, 1)}
-- States:  released -> queued
if not EPOCH then return NO_EPOCH end
if deposed(ARGV[3]) then return {-1, 0} end
local agent = ARGV[1]
if redis.call("EXISTS", KEY.agent .. agent) == 1 then redis.call("HSET", KEY.agent .. agent, "drain", 1) end
local found = take_back(agent, tonumber(ARGV[2]), "agent_drained")
return {found, redis.call("EXISTS", KEY.released .. agent)}
