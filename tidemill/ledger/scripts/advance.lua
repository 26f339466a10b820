-- Purpose: raise the sequence of this epoch.
-- KEYS:    1 prefix
-- ARGV:    1 epoch, 2 sequence, 3 leader's fence ("" = none)
-- Reply:   1, or 0 when the epoch is another one (or none), and for an old fence
-- States:  none
if tonumber(ARGV[1]) ~= EPOCH or deposed(ARGV[3]) then return 0 end
if tonumber(ARGV[2]) > tonumber(redis.call("HGET", KEY.epoch, "sequence")) then
  redis.call("HSET", KEY.epoch, "sequence", ARGV[2])
end
return 1
