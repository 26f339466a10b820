-- Purpose: know a finished job again that the ledger forgot with its memory.
-- KEYS:    1 prefix
-- ARGV:    1 id, 2 generation, 3 function, 4 spec (JSON), 5 owner ("" = default), 6 state, 7 the end (JSON),
--          8 error code, 9 error line, 10 run time (s), 11 accepted (us), 12 ended (us), 13 started (us, "" = never),
--          14 attempt, 15 pool, 16 agent, 17 placement (JSON, "" = none), 18 summary, 19 settled shard, 20 settled digest,
--          21 and on: history, oldest first
-- Reply:   1, or 0 when the job is here in this or a later generation, or is not over
-- States:  none -> terminal; terminal with a lower generation -> terminal; others stay
if not EPOCH then return NO_EPOCH end
local id, generation, fn, created = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[11]
local old = load(id)
if old then
  if not TERMINAL[old.state] or generation <= tonumber(old.generation) then return 0 end
  created = old.created
  forget_end(id, old)
end
redis.call("HSET", KEY.job .. id, "state", ARGV[6], "function", fn, "generation", generation, "spec", ARGV[4],
  "created", created, "accepted", EPOCH, "end", ARGV[7], "done", ARGV[12], "attempt", ARGV[14])
local names = {[5] = "owner", [8] = "error", [13] = "started", [15] = "pool", [16] = "agent", [17] = "placement"}
for at, name in pairs(names) do
  if ARGV[at] ~= "" then redis.call("HSET", KEY.job .. id, name, ARGV[at]) end
end
for i = 21, #ARGV do redis.call("RPUSH", KEY.history .. id, ARGV[i]) end
redis.call("ZADD", KEY.jobs, created, id)
redis.call("ZADD", KEY.finished, ARGV[12], id)
if ARGV[6] ~= "succeeded" then redis.call("ZADD", KEY.unsuccessful, created, id) end
redis.call("SADD", KEY.settled .. ARGV[19], ARGV[20])
count(fn, ARGV[6], 1)
local job = {fn = fn, generation = generation, attempt = ARGV[14]}
line(id, job, "queued", "created", 1, "summary", ARGV[18])
job.agent = ARGV[16]
line(id, job, ARGV[6], "error", ARGV[9], "run_s", ARGV[10])
return 1
