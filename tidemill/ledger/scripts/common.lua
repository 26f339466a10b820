-- What the scripts share. The loader puts a table KEY (key shapes) and this file in front of each script.
-- Times are microseconds since 1970 on the server's clock: whole numbers below 2^53, so exact as Lua numbers and as
-- scores. `text` writes them, because tostring() and .. keep only 14 digits.

local clock = redis.call("TIME")
local NOW = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local EPOCH = tonumber(redis.call("HGET", KEY.epoch, "epoch"))
local NO_EPOCH = redis.error_reply("NOEPOCH the ledger holds no epoch yet")
local TERMINAL = {succeeded = true, failed = true, cancelled = true}
local ACTIVE = {released = true, running = true, committed = true}

local function text(number)
  return string.format("%.0f", number)
end

-- Whether a call comes from a leader that has been replaced: `fence` is what its lease gave ("" = not a leader's call).
local function deposed(fence)
  return fence ~= "" and redis.call("GET", KEY.fence .. "placement") ~= fence
end

-- The fields that the scripts decide by, as a table; nil when there is no such job.
local function load(id)
  local v = redis.call("HMGET", KEY.job .. id, "state", "function", "generation", "attempt", "counted", "max", "epoch",
    "nonce", "agent", "cancel", "created", "submitted", "accepted", "look", "by")
  if not v[1] then return nil end
  return {
    state = v[1], fn = v[2], generation = v[3], attempt = tonumber(v[4] or 0), counted = tonumber(v[5] or 0),
    max = tonumber(v[6]), epoch = v[7], nonce = v[8], agent = v[9], cancel = v[10], created = v[11],
    submitted = v[12] or v[11], accepted = tonumber(v[13]), look = v[14], by = v[15],
  }
end

local function count(fn, state, by)
  local field = fn .. ":" .. state
  if redis.call("HINCRBY", KEY.counts, field, by) == 0 then redis.call("HDEL", KEY.counts, field) end
end

-- One line of the stream of transitions.
local function line(id, job, state, ...)
  redis.call("XADD", KEY.transitions, "MAXLEN", "~", 20000, "*", "job", id, "function", job.fn, "state", state,
    "at", text(NOW), "attempt", job.attempt, "generation", job.generation, "agent", job.agent or "", ...)
end

-- From job.state to another state: counters, indexes of listings, stream. The caller keeps queues, sets and leases
-- right.
local function move(id, job, state, ...)
  count(job.fn, job.state, -1)
  count(job.fn, state, 1)
  if ACTIVE[state] and not ACTIVE[job.state] then redis.call("ZADD", KEY.active, job.created, id) end
  if ACTIVE[job.state] and not ACTIVE[state] then redis.call("ZREM", KEY.active, id) end
  if TERMINAL[state] then
    redis.call("ZREM", KEY.open, id)
    if state ~= "succeeded" then redis.call("ZADD", KEY.unsuccessful, job.created, id) end
  end
  job.state = state
  redis.call("HSET", KEY.job .. id, "state", state)
  line(id, job, state, ...)
end

local function remember(id, what, attempt, agent, detail)
  local entry = cjson.encode({text(NOW), what, text(attempt), agent or "", detail or ""})
  redis.call("RPUSH", KEY.history .. id, entry)
  redis.call("LTRIM", KEY.history .. id, -30, -1)
end

-- Whether an agent is known and takes work.
local function takes_work(agent)
  local v = redis.call("HMGET", KEY.agent .. agent, "pool", "state", "drain")
  if not v[1] or v[2] == "draining" or v[3] then return false end
  return redis.call("SISMEMBER", KEY.draining, v[1]) == 0
end

-- After a job left the agent's released list: since when its oldest one waits for a claim.
local function recheck_unclaimed(agent)
  local first = redis.call("ZRANGE", KEY.released .. agent, 0, 0, "WITHSCORES")
  if first[1] then
    redis.call("ZADD", KEY.unclaimed, first[2], agent)
  else
    redis.call("ZREM", KEY.unclaimed, agent)
  end
end

-- queued -> released. The job must have left its queue.
local function bind(id, job, agent, placement)
  job.agent = agent
  redis.call("HSET", KEY.job .. id, "agent", agent, "pool", redis.call("HGET", KEY.agent .. agent, "pool"),
    "released", text(NOW), "placement", placement)
  redis.call("ZADD", KEY.released .. agent, NOW, id)
  redis.call("ZADD", KEY.unclaimed, "NX", NOW, agent)
  move(id, job, "released")
end

-- released, running -> queued. `from` is when it may run (nil: its old place in the queue).
local function requeue(id, job, from)
  local agent = job.agent
  if job.state == "released" then
    redis.call("ZREM", KEY.released .. agent, id)
    recheck_unclaimed(agent)
  else
    redis.call("ZREM", KEY.leases, id)
    if agent then redis.call("SREM", KEY.running .. agent, id) end
  end
  redis.call("HDEL", KEY.job .. id, "agent", "pool", "released", "started", "progress", "by", "granted")
  if agent then redis.call("HSET", KEY.job .. id, "last_agent", agent) end
  job.agent = nil
  redis.call("ZADD", KEY.queue .. job.fn, from or job.submitted, id)
  move(id, job, "queued")
end

-- Gives a job that nobody holds (out of its queue, or with a void lease) to somebody who will end it: a new token
-- that counts no attempt. The state becomes running, a committed one stays.
local function take(id, job, by, lease, nonce)
  if job.state == "queued" then
    redis.call("ZREM", KEY.queue .. job.fn, id)
  elseif job.state == "released" then
    redis.call("ZREM", KEY.released .. job.agent, id)
    recheck_unclaimed(job.agent)
  elseif job.agent then
    redis.call("SREM", KEY.running .. job.agent, id)
    redis.call("SREM", KEY.publishing .. job.agent, id)
  end
  redis.call("HSET", KEY.job .. id, "by", by, "epoch", EPOCH, "nonce", nonce, "look", 1)
  redis.call("HDEL", KEY.job .. id, "granted")
  redis.call("ZADD", KEY.leases, NOW + lease, id)
  if job.state == "queued" or job.state == "released" then
    redis.call("HDEL", KEY.job .. id, "agent", "pool", "released")
    job.agent = nil
    move(id, job, "running")
  end
end

-- Queues up to `limit` released jobs of an agent that takes no more work again; the next sweep finds the others.
-- Gives how many.
local function take_back(agent, limit, why)
  local ids = redis.call("ZRANGE", KEY.released .. agent, 0, limit - 1)
  for _, id in ipairs(ids) do
    local job = load(id)
    if job and job.state == "released" and job.agent == agent then
      requeue(id, job)
      remember(id, why, job.attempt, agent)
    else
      redis.call("ZREM", KEY.released .. agent, id)
    end
  end
  if redis.call("EXISTS", KEY.released .. agent) == 1 then
    redis.call("ZADD", KEY.unclaimed, 0, agent)
  else
    redis.call("ZREM", KEY.unclaimed, agent)
  end
  return #ids
end

-- Ends the leases of an agent now: the next sweep finds its jobs. One that lives after all renews them. Gives how many.
local function void_leases(agent)
  local found = 0
  for _, key in ipairs({KEY.running .. agent, KEY.publishing .. agent}) do
    for _, id in ipairs(redis.call("SMEMBERS", key)) do
      found = found + redis.call("ZADD", KEY.leases, "XX", "CH", NOW, id)
    end
  end
  return found
end

-- Whether the token in ARGV[at..at+4] (id, generation, epoch, attempt, nonce) is the current one of a job in hand.
-- Gives the job's id and the job; nil for a stale token.
local function held(at)
  local job = load(ARGV[at])
  if not job or (job.state ~= "running" and job.state ~= "committed") then return nil end
  if tonumber(ARGV[at + 2]) ~= EPOCH or job.epoch ~= ARGV[at + 2] or job.nonce ~= ARGV[at + 4] then return nil end
  if job.generation ~= ARGV[at + 1] or job.attempt ~= tonumber(ARGV[at + 3]) then return nil end
  return ARGV[at], job
end

-- A job as the caller reads it: id, look first (0, 1), all fields, history.
local function whole(id, look)
  return {id, look and 1 or 0, redis.call("HGETALL", KEY.job .. id), redis.call("LRANGE", KEY.history .. id, 0, -1)}
end

-- Put a doorbell into the list that the Celery worker of this agent reads: <pool>.<agent>.
local function ring(agent, message)
  if message ~= "" then redis.call("LPUSH", redis.call("HGET", KEY.agent .. agent, "pool") .. "." .. agent, message) end
end

-- The slot of this job is free: a grant that it used comes back, so that the next submit need not wait for the planner.
local function grant_again(id, job)
  local number = redis.call("HGET", KEY.job .. id, "granted")
  if not number then return end
  redis.call("HDEL", KEY.job .. id, "granted")
  if job.agent and redis.call("HGET", KEY.grants .. job.fn, "#") == number then
    redis.call("HINCRBY", KEY.grants .. job.fn, job.agent, 1)
  end
end

-- A job that is over leaves counts and indexes: a later generation takes its place, and keeps that in listings.
local function forget_end(id, old)
  count(old.fn, old.state, -1)
  redis.call("ZREM", KEY.finished, id)
  redis.call("ZREM", KEY.unsuccessful, id)
  redis.call("DEL", KEY.job .. id, KEY.history .. id, KEY.log .. id)
end

-- Whether the one who ends this job has to look for a commit record first.
local function looks_first(job)
  return job.look or job.attempt > 1 or job.accepted ~= EPOCH
end
