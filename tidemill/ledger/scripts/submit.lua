-- Purpose: accept a job, once for each id and generation; with a grant it goes straight to an agent.
-- KEYS:    1 prefix
-- ARGV:    1 id, 2 generation, 3 function, 4 spec (JSON), 5 max attempts, 6 owner ("" = default), 7 look first (0, 1),
--          8 summary, 9 settled shard, 10 settled digest, 11 version of functions and pools ("" = any),
--          12 the message that rings an agent ("" = the caller rings)
-- Reply:   {created (0, 1), state ("" = none), generation, agent ("" = none), settled (0, 1)}; {} at another version
-- States:  none -> queued (or released); terminal with a lower generation -> queued (or released); others stay
if not EPOCH then return NO_EPOCH end
if ARGV[11] ~= "" and ARGV[11] ~= (redis.call("GET", KEY.version) or "0") then return {} end
local id, generation, fn = ARGV[1], tonumber(ARGV[2]), ARGV[3]
-- Sequence 0: the rebuild goes on, and the settled set is not complete. An event may be about what is finished.
local look = ARGV[7] == "1" or redis.call("HGET", KEY.epoch, "sequence") == "0"
local created = text(NOW)
local old = load(id)
if old then
  if not TERMINAL[old.state] or generation <= tonumber(old.generation) then
    return {0, old.state, tonumber(old.generation), old.state == "released" and old.agent or "", 0}
  end
  -- A new life. Its place in listings stays, so that a cursor neither skips nor repeats it.
  created = old.created
  forget_end(id, old)
elseif redis.call("SISMEMBER", KEY.settled .. ARGV[9], ARGV[10]) == 1 then
  if generation == 1 then return {0, "", generation, "", 1} end
  look = true -- which generation finished is written in the bucket only
end

redis.call("HSET", KEY.job .. id, "state", "queued", "function", fn, "generation", generation, "spec", ARGV[4],
  "created", created, "accepted", EPOCH, "max", ARGV[5])
if old then redis.call("HSET", KEY.job .. id, "submitted", text(NOW)) end
if ARGV[6] ~= "" then redis.call("HSET", KEY.job .. id, "owner", ARGV[6]) end
if look then redis.call("HSET", KEY.job .. id, "look", 1) end
redis.call("ZADD", KEY.jobs, created, id)
redis.call("ZADD", KEY.open, created, id)
local job = {state = "queued", fn = fn, generation = generation, attempt = 0, created = created}
count(fn, "queued", 1)
line(id, job, "queued", "created", 1, "summary", ARGV[8])

-- A grant never overtakes work that waits already.
local grants = redis.call("HGETALL", KEY.grants .. fn)
if #grants > 0 and redis.call("ZCOUNT", KEY.queue .. fn, "-inf", NOW) == 0 then
  local best, most, placement, number = nil, 0, "", ""
  for i = 1, #grants, 2 do
    local agent, left = grants[i], tonumber(grants[i + 1])
    if agent == "" then
      placement = grants[i + 1]
    elseif agent == "#" then
      number = grants[i + 1]
    elseif (left > most or (left == most and best and agent < best)) and takes_work(agent) then
      best, most = agent, left
    end
  end
  if best then
    if redis.call("HINCRBY", KEY.grants .. fn, best, -1) <= 0 then redis.call("HDEL", KEY.grants .. fn, best) end
    bind(id, job, best, placement)
    redis.call("HSET", KEY.job .. id, "granted", number)
    ring(best, ARGV[12])
    return {1, "released", generation, best, 0}
  end
end
redis.call("ZADD", KEY.queue .. fn, NOW, id)
return {1, "queued", generation, "", 0}
