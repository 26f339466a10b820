-- Purpose: note that a runner of a revision could not start.
-- KEYS:    1 prefix
-- ARGV:    1 function@revision, 2 error (JSON), 3 permanent (0, 1)
-- Reply:   permanent failures since the last good start
-- States:  none
if not EPOCH then return NO_EPOCH end
redis.call("HSET", KEY.failure, ARGV[1], ARGV[2])
return redis.call("HINCRBY", KEY.failures, ARGV[1], ARGV[3])
