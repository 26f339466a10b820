-- Purpose: say of ids whether they are live here or settled.
-- KEYS:    1 prefix
-- ARGV:    three for each: id, settled shard, settled digest
-- Reply:   for each 1 or 0
-- States:  all (stay)
if not EPOCH then return NO_EPOCH end
local replies = {}
for i = 1, #ARGV, 3 do
  local settled = redis.call("SISMEMBER", KEY.settled .. ARGV[i + 1], ARGV[i + 2])
  replies[#replies + 1] = settled == 1 and 1 or redis.call("EXISTS", KEY.job .. ARGV[i])
end
return replies
