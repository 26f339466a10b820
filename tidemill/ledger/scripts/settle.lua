-- Purpose: add finished identities to the settled set.
-- KEYS:    1 prefix
-- ARGV:    two for each: shard, digest
-- Reply:   how many were new
-- States:  none
if not EPOCH then return NO_EPOCH end
local new = 0
for i = 1, #ARGV, 2 do new = new + redis.call("SADD", KEY.settled .. ARGV[i], ARGV[i + 1]) end
return new
