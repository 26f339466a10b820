-- Purpose: forget the start failures of a revision.
-- KEYS:    1 prefix
-- ARGV:    1 function@revision
-- Reply:   1 when there were some, else 0
-- States:  none
if not EPOCH then return NO_EPOCH end
redis.call("HDEL", KEY.failure, ARGV[1])
redis.call("HDEL", KEY.failed_at, ARGV[1])
return redis.call("HDEL", KEY.failures, ARGV[1])
