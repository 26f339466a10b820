-- Purpose: store why a queued job still waits.
-- KEYS:    1 prefix
-- ARGV:    1 id, 2 placement (JSON), 3 leader's fence ("" = none)
-- Reply:   1, or 0 when it is not queued or the fence is an old one
-- States:  queued (stays)
if not EPOCH then return NO_EPOCH end
if deposed(ARGV[3]) then return 0 end
if redis.call("HGET", KEY.job .. ARGV[1], "state") ~= "queued" then return 0 end
redis.call("HSET", KEY.job .. ARGV[1], "placement", ARGV[2])
return 1
