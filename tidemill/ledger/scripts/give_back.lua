-- Purpose: queue a running job again, to be tried at once or later. One that is to be cancelled, or has no attempt left,
--          goes to the sweep.
-- KEYS:    1 prefix
-- ARGV:    1-5 token (id, generation, epoch, attempt, nonce), 6 delay (us), 7 count the attempt (0, 1), 8 why,
--          9 error line
-- Reply:   1 (also for a repeated call), or 0 for a stale token
-- States:  running -> queued
if not EPOCH then return NO_EPOCH end
local id, job = held(1)
if not id then
  -- The reply was lost: the nonce stays until somebody else has the job.
  local v = redis.call("HMGET", KEY.job .. ARGV[1], "state", "generation", "nonce")
  return ((v[1] == "queued" or v[1] == "released") and v[2] == ARGV[2] and v[3] == ARGV[5]) and 1 or 0
end
if job.state ~= "running" then return 0 end
local agent, attempt, detail = job.agent, job.attempt, ARGV[8]
if ARGV[9] ~= "" then detail = detail ~= "" and (detail .. ": " .. ARGV[9]) or ARGV[9] end
if ARGV[7] == "0" and not job.by and attempt > 0 then -- a seized job counted none
  job.attempt = attempt - 1
  redis.call("HSET", KEY.job .. id, "attempt", job.attempt)
end
local used = job.counted == EPOCH and job.attempt or 0
if job.cancel or used >= job.max then
  redis.call("HDEL", KEY.job .. id, "nonce")
  redis.call("ZADD", KEY.leases, NOW, id)
else
  local delay = tonumber(ARGV[6])
  requeue(id, job, delay > 0 and NOW + delay or nil)
end
remember(id, "given_back", attempt, agent, detail)
return 1
