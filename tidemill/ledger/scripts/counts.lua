-- Purpose: read how many jobs there are of each function in each state.
-- KEYS:    1 prefix
-- ARGV:    none
-- Reply:   {field, number, ...}, a field is function:state
-- States:  all (stay)
if not EPOCH then return NO_EPOCH end
return redis.call("HGETALL", KEY.counts)
