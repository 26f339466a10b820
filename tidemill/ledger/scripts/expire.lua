-- Purpose: forget jobs that ended long ago. Settled identities stay.
-- KEYS:    1 prefix
-- ARGV:    1 ended before (us), 2 limit
-- Reply:   the number of jobs forgotten
-- States:  succeeded, failed, cancelled -> none
if not EPOCH then return NO_EPOCH end
local ids = redis.call("ZRANGEBYSCORE", KEY.finished, "-inf", "(" .. ARGV[1], "LIMIT", 0, ARGV[2])
for _, id in ipairs(ids) do
  local v = redis.call("HMGET", KEY.job .. id, "function", "state")
  if v[1] then count(v[1], v[2], -1) end
  redis.call("ZREM", KEY.finished, id)
  redis.call("ZREM", KEY.jobs, id)
  redis.call("ZREM", KEY.unsuccessful, id)
  redis.call("DEL", KEY.job .. id, KEY.history .. id, KEY.log .. id)
end
return #ids
