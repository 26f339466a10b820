-- Purpose: prolong the leases of attempts.
-- KEYS:    1 prefix
-- ARGV:    1 lease (us), then five for each token: id, generation, epoch, attempt, nonce
-- Reply:   for each token 0 stale, 1 held, 2 held and asked to cancel
-- States:  running, committed (stay)
if not EPOCH then return NO_EPOCH end
local replies = {}
for at = 2, #ARGV, 5 do
  local id, job = held(at)
  if id then redis.call("ZADD", KEY.leases, NOW + tonumber(ARGV[1]), id) end
  replies[#replies + 1] = (not id and 0) or (job.cancel and 2) or 1
end
return replies
