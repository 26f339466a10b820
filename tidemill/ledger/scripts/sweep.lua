-- Purpose: mend what time has broken: leases that ended, agents that fell silent, released jobs that nobody claims.
-- KEYS:    1 prefix
-- ARGV:    1 by whom, 2 lease (us), 3 silence of an agent (us), 4 limit of each kind, 5 nonce of this call,
--          6 pause (us): age of an unclaimed release, and how long a job that found no room is put off,
--          7 leader's fence ("" = none), 8 limit of jobs that are taken over
-- Reply:   {requeued ids, exhausted jobs, unpublished jobs, agents to ring, dead agents, more (0, 1)};
--          a job is {id, look first, fields, history} and belongs to the caller now. Nothing for an old fence
-- States:  running -> queued, or seized (attempts used up, or to be cancelled); committed (seized); released -> queued
if not EPOCH then return NO_EPOCH end
if deposed(ARGV[7]) then return {{}, {}, {}, {}, {}, 0} end
local by, lease, silence, limit, nonce = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local pause, hands = tonumber(ARGV[6]), tonumber(ARGV[8])
local requeued, exhausted, unpublished, ring, dead, more = {}, {}, {}, {}, {}, 0

local due = redis.call("ZRANGEBYSCORE", KEY.leases, "-inf", NOW, "LIMIT", 0, limit)
if #due == limit then more = 1 end
for _, id in ipairs(due) do
  local job = load(id)
  local agent = job and job.agent
  local held = job and (job.state == "running" or job.state == "committed")
  local used = held and job.counted == EPOCH and job.attempt or 0
  local over = held and (job.state == "committed" or job.cancel or used >= job.max)
  if not held then
    redis.call("ZREM", KEY.leases, id)
  elseif over and hands == 0 then
    redis.call("ZADD", KEY.leases, NOW + pause, id) -- so that it bars nothing behind it; its holder keeps its token
  elseif job.state == "committed" then
    remember(id, "publication_taken_over", job.attempt, agent, by)
    take(id, job, by, lease, nonce)
    unpublished[#unpublished + 1] = whole(id, true)
    hands = hands - 1
  else
    local void = tonumber(job.epoch) ~= EPOCH
    if job.nonce then remember(id, void and "lease_void" or "lease_expired", job.attempt, agent) end
    if over then
      take(id, job, by, lease, nonce)
      exhausted[#exhausted + 1] = whole(id, true)
      hands = hands - 1
    else
      redis.call("HDEL", KEY.job .. id, "nonce")
      requeue(id, job)
      requeued[#requeued + 1] = id
    end
  end
end

for _, agent in ipairs(redis.call("ZRANGEBYSCORE", KEY.agents, "-inf", NOW - silence, "LIMIT", 0, limit)) do
  redis.call("ZREM", KEY.agents, agent)
  redis.call("DEL", KEY.agent .. agent)
  void_leases(agent)
  -- Its released jobs are found below, because the agent is unknown now.
  if redis.call("EXISTS", KEY.released .. agent) == 1 then redis.call("ZADD", KEY.unclaimed, 0, agent) end
  dead[#dead + 1] = agent
end
if #dead == limit then more = 1 end

local late = redis.call("ZRANGEBYSCORE", KEY.unclaimed, "-inf", NOW - pause, "LIMIT", 0, limit)
if #late == limit then more = 1 end
local room = limit
for _, agent in ipairs(late) do
  if takes_work(agent) then
    ring[#ring + 1] = agent
    redis.call("ZADD", KEY.unclaimed, NOW, agent) -- again after the same time, if they are still there
  elseif room > 0 then
    local ids = redis.call("ZRANGE", KEY.released .. agent, 0, room - 1)
    take_back(agent, room, "agent_gone")
    for _, id in ipairs(ids) do requeued[#requeued + 1] = id end
    room = room - #ids
    if redis.call("EXISTS", KEY.released .. agent) == 1 then more = 1 end
  else
    more = 1
  end
end
return {requeued, exhausted, unpublished, ring, dead, more}
