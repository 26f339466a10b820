-- Purpose: drop identities whose objects are gone from the settled set. Those that live here stay.
-- KEYS:    1 prefix
-- ARGV:    1 leader's fence ("" = none), then three for each: id, shard, digest
-- Reply:   how many were dropped; 0 for an old fence
-- States:  all (stay)
if not EPOCH then return NO_EPOCH end
if deposed(ARGV[1]) then return 0 end
local dropped = 0
for i = 2, #ARGV, 3 do
  if redis.call("EXISTS", KEY.job .. ARGV[i]) == 0 then
    dropped = dropped + redis.call("SREM", KEY.settled .. ARGV[i + 1], ARGV[i + 2])
  end
end
return dropped
