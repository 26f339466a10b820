-- Purpose: read the waiting work of each function: how much, and the oldest jobs that may run now.
-- KEYS:    1 prefix
-- ARGV:    1 jobs for each function
-- Reply:   a list of {function, ready, delayed, next delayed (us, "" = none), jobs {id, spec, owner, submitted,
--          attempt, last agent}}
-- States:  queued (stays)
if not EPOCH then return NO_EPOCH end
local limit, functions = tonumber(ARGV[1]), {}
for _, field in ipairs(redis.call("HKEYS", KEY.counts)) do
  local fn = string.match(field, "^(.*):queued$")
  if fn then functions[#functions + 1] = fn end
end
table.sort(functions)
local found = {}
for _, fn in ipairs(functions) do
  local queue, jobs = KEY.queue .. fn, {}
  local ready = redis.call("ZCOUNT", queue, "-inf", NOW)
  local later = redis.call("ZRANGE", queue, ready, ready, "WITHSCORES")
  local shown = math.min(ready, limit)
  -- Without one, 0 to -1 would be all of them.
  for _, id in ipairs(shown > 0 and redis.call("ZRANGE", queue, 0, shown - 1) or {}) do
    local v = redis.call("HMGET", KEY.job .. id, "spec", "owner", "submitted", "created", "attempt", "last_agent")
    jobs[#jobs + 1] = {id, v[1], v[2] or "default", v[3] or v[4], v[5] or "0", v[6] or ""}
  end
  found[#found + 1] = {fn, ready, redis.call("ZCARD", queue) - ready,
    later[2] and text(tonumber(later[2])) or "", jobs}
end
return found
