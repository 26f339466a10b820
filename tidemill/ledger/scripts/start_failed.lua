-- Purpose: note that a runner of a revision could not start.
-- KEYS:    1 prefix
-- ARGV:    1 function@revision, 2 error (JSON), 3 permanent (0, 1), 4 life of failures after the last one (us)
-- Reply:   permanent failures since the last good start
-- States:  none
if not EPOCH then return NO_EPOCH end
local last = tonumber(redis.call("HGET", KEY.failed_at, ARGV[1]) or 0)
if last < NOW - tonumber(ARGV[4]) then redis.call("HDEL", KEY.failures, ARGV[1]) end
redis.call("HSET", KEY.failed_at, ARGV[1], text(NOW))
redis.call("HSET", KEY.failure, ARGV[1], ARGV[2])
return redis.call("HINCRBY", KEY.failures, ARGV[1], ARGV[3])
