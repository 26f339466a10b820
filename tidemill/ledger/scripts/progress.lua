-- Purpose: say how far a running job is.
-- KEYS:    1 prefix
-- ARGV:    1-5 token (id, generation, epoch, attempt, nonce), 6 progress (JSON)
-- Reply:   1, or 0 for a stale token or a job that is committed already
-- States:  running (stays)
if not EPOCH then return NO_EPOCH end
local id, job = held(1)
if not id or job.state ~= "running" then return 0 end
redis.call("HSET", KEY.job .. id, "progress", ARGV[6])
return 1
