-- Purpose: ask for the cancel of a job. A waiting one is seized for the caller, a running one is marked.
-- KEYS:    1 prefix
-- ARGV:    1 id, 2 by whom, 3 lease (us), 4 nonce of this call
-- Reply:   {state before, or false; the job {id, look first, fields, history} when seized}. A repeated call gives the same.
-- States:  queued, released -> running, seized; running (marked); others stay
if not EPOCH then return NO_EPOCH end
local id, by = ARGV[1], ARGV[2]
local job = load(id)
if not job then return {false} end
local before = job.state
if before == "queued" or before == "released" then
  local look = looks_first(job)
  redis.call("HSET", KEY.job .. id, "cancel", by)
  take(id, job, by, tonumber(ARGV[3]), ARGV[4])
  remember(id, "cancel_requested", job.attempt, "", by)
  return {before, whole(id, look)}
end
if before == "running" then
  if job.nonce == ARGV[4] then return {"queued", whole(id, true)} end
  if not job.cancel then
    redis.call("HSET", KEY.job .. id, "cancel", by)
    remember(id, "cancel_requested", job.attempt, job.agent, by)
  end
end
return {before}
