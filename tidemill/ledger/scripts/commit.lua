-- Purpose: mirror the commit record of the bucket; the lease then covers the publication. The slot is free now.
-- KEYS:    1 prefix
-- ARGV:    1-5 token (id, generation, epoch, attempt, nonce), 6 the end (JSON), 7 lease (us)
-- Reply:   1 (also when this token committed it already), or 0 for a stale token
-- States:  running -> committed; committed (stays)
if not EPOCH then return NO_EPOCH end
local id, job = held(1)
if not id then return 0 end
redis.call("ZADD", KEY.leases, NOW + tonumber(ARGV[7]), id)
if job.state == "committed" then return 1 end
redis.call("HSET", KEY.job .. id, "end", ARGV[6])
if job.agent and redis.call("SREM", KEY.running .. job.agent, id) == 1 then
  redis.call("SADD", KEY.publishing .. job.agent, id)
end
grant_again(id, job)
move(id, job, "committed")
return 1
