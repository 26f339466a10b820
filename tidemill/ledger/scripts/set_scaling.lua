-- Purpose: replace the numbers that outside scalers read.
-- KEYS:    1 prefix
-- ARGV:    1 numbers (JSON), 2 leader's fence ("" = none)
-- Reply:   1, or 0 for an old fence
-- States:  none
if not EPOCH then return NO_EPOCH end
if deposed(ARGV[2]) then return 0 end
redis.call("SET", KEY.scaling, ARGV[1])
return 1
