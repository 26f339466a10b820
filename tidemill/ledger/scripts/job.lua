-- Purpose: read one job.
-- KEYS:    1 prefix
-- ARGV:    1 id
-- Reply:   {id, 0, fields, history}, or nil
-- States:  all (stay)
if not EPOCH then return NO_EPOCH end
if redis.call("EXISTS", KEY.job .. ARGV[1]) == 0 then return false end
return whole(ARGV[1], false)
