-- Purpose: give an agent some of its released jobs, each with a new token; attempts are counted here, per epoch.
-- KEYS:    1 prefix
-- ARGV:    1 agent, 2 limit, 3 lease (us), 4 nonce of this call, 5 repeated call (0, 1)
-- Reply:   a list of jobs {id, look first, fields, history, version of functions and pools}; empty for an agent that is
--          unknown or draining. A repeated call gives what the lost reply gave.
-- States:  released -> running
if not EPOCH then return NO_EPOCH end
local agent, limit, lease, nonce = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local claims = {}
local function claimed(id, look)
  local claim = whole(id, look)
  claim[5] = redis.call("GET", KEY.version) or "0"
  claims[#claims + 1] = claim
end
if ARGV[5] == "1" then
  for _, id in ipairs(redis.call("SMEMBERS", KEY.running .. agent)) do
    local job = load(id)
    if job and job.nonce == nonce and job.state == "running" then
      claimed(id, redis.call("HGET", KEY.job .. id, "looks") == "1")
    end
  end
  if #claims > 0 then return claims end
end
if not takes_work(agent) then return claims end
local ids = redis.call("ZRANGE", KEY.released .. agent, 0, limit - 1)
for _, id in ipairs(ids) do
  redis.call("ZREM", KEY.released .. agent, id)
  local job = load(id)
  if job and job.state == "released" and job.agent == agent then
    local counted = job.counted == EPOCH and job.attempt or 0
    local look = job.look or counted > 0 or job.accepted ~= EPOCH
    job.attempt = counted + 1
    -- Whoever ends it after this one looks first, also when this attempt is given back uncounted.
    redis.call("HSET", KEY.job .. id, "attempt", job.attempt, "counted", EPOCH, "epoch", EPOCH, "nonce", nonce,
      "started", text(NOW), "look", 1, "looks", look and 1 or 0)
    redis.call("ZADD", KEY.leases, NOW + lease, id)
    redis.call("SADD", KEY.running .. agent, id)
    move(id, job, "running")
    claimed(id, look)
  end
end
if #ids > 0 then recheck_unclaimed(agent) end
return claims
