-- Purpose: take a queued or released job out of the queue, to end it without a run. Counts no attempt.
-- KEYS:    1 prefix
-- ARGV:    1 id, 2 by whom, 3 lease (us), 4 nonce of this call, 5 leader's fence ("" = none)
-- Reply:   the job {id, look first, fields, history}, or nil (also for an old fence). A repeated call gives the same.
-- States:  queued, released -> running
if not EPOCH then return NO_EPOCH end
if deposed(ARGV[5]) then return false end
local id = ARGV[1]
local job = load(id)
if not job then return false end
if job.state == "running" and job.nonce == ARGV[4] then return whole(id, true) end
if job.state ~= "queued" and job.state ~= "released" then return false end
local look = looks_first(job)
take(id, job, ARGV[2], tonumber(ARGV[3]), ARGV[4])
return whole(id, look)
