-- Purpose: an agent has ended: remove it, queue its released jobs again, let its leases end now.
-- KEYS:    1 prefix
-- ARGV:    1 agent, 2 limit of released jobs in this call
-- Reply:   {jobs concerned, more (0, 1)}
-- States:  released -> queued; running, committed (their leases end)
if not EPOCH then return NO_EPOCH end
local agent = ARGV[1]
redis.call("ZREM", KEY.agents, agent)
redis.call("DEL", KEY.agent .. agent)
local found = void_leases(agent) + take_back(agent, tonumber(ARGV[2]), "agent_gone")
return {found, redis.call("EXISTS", KEY.released .. agent)}
