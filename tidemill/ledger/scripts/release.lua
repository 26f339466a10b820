-- Purpose: bind a queued job to an agent that is known and takes work.
-- KEYS:    1 prefix
-- ARGV:    1 id, 2 agent, 3 placement (JSON), 4 leader's fence ("" = none)
-- Reply:   1, or 0 when it is not queued, was cancelled, the agent is gone or draining, or the fence is an old one; 1
--          also for a repeated call
-- States:  queued -> released
if not EPOCH then return NO_EPOCH end
if deposed(ARGV[4]) then return 0 end
local id, agent = ARGV[1], ARGV[2]
local job = load(id)
if not job then return 0 end
if job.state == "released" and job.agent == agent then return 1 end
if job.state ~= "queued" or job.cancel or not takes_work(agent) then return 0 end
redis.call("ZREM", KEY.queue .. job.fn, id)
bind(id, job, agent, ARGV[3])
return 1
