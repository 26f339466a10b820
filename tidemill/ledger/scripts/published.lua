-- Purpose: end a job whose manifest is written; its identity joins the settled set.
-- KEYS:    1 prefix
-- ARGV:    1-5 token (id, generation, epoch, attempt, nonce), 6 state, 7 the end (JSON), 8 error code, 9 error line,
--          10 run time (s), 11 settled shard, 12 settled digest, 13 life of the log from now (s)
-- Reply:   1 (also when this generation ended in that state already), or 0 for a stale token
-- States:  running, committed -> succeeded, failed, cancelled; terminal (stays)
if not EPOCH then return NO_EPOCH end
local id, job = held(1)
if not id then
  local v = redis.call("HMGET", KEY.job .. ARGV[1], "state", "generation")
  return (v[1] == ARGV[6] and v[2] == ARGV[2]) and 1 or 0
end
redis.call("ZREM", KEY.leases, id)
if job.agent then
  redis.call("SREM", KEY.running .. job.agent, id)
  redis.call("SREM", KEY.publishing .. job.agent, id)
end
grant_again(id, job)
redis.call("HSET", KEY.job .. id, "end", ARGV[7], "done", text(NOW))
if ARGV[8] ~= "" then redis.call("HSET", KEY.job .. id, "error", ARGV[8]) end
redis.call("HDEL", KEY.job .. id, "nonce", "by", "look", "looks")
redis.call("ZADD", KEY.finished, NOW, id)
redis.call("SADD", KEY.settled .. ARGV[11], ARGV[12])
redis.call("EXPIRE", KEY.log .. id, ARGV[13])
move(id, job, ARGV[6], "error", ARGV[9], "run_s", ARGV[10])
return 1
