-- Purpose: read one chunk of the listing, newest first, and give those that pass the filters.
-- KEYS:    1 prefix
-- ARGV:    1 cursor time (us, "" = the start), 2 cursor id, 3 chunk, 4 jobs wanted, 5 state ("open" = not terminal),
--          6 function, 7 since (us), 8 error code, 9 owner; "" = any
-- Reply:   {jobs {id, 0, fields, history}, end reached (0, 1), time and id of the last one that was looked at}
-- States:  all (stay)
if not EPOCH then return NO_EPOCH end
local time, last, chunk, wanted = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local state, fn, since, code, owner = ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]
-- The smallest index that has all that may fit; all are ordered alike.
local index = KEY.jobs
if code ~= "" or state == "failed" or state == "cancelled" then
  index = KEY.unsuccessful
elseif ACTIVE[state] then
  index = KEY.active
elseif state == "open" or state == "queued" then
  index = KEY.open
end
-- Jobs that came after the cursor stand before it, so the rank is found anew each time.
local start = time == "" and 0 or redis.call("ZCOUNT", index, "(" .. time, "+inf")
local entries = redis.call("ZREVRANGE", index, start, start + chunk - 1, "WITHSCORES")
local found, ended = {}, #entries < 2 * chunk and 1 or 0
local seen_time, seen_id = time, last
for i = 1, #entries, 2 do
  local id, at = entries[i], text(tonumber(entries[i + 1]))
  if since and tonumber(at) < since then
    ended = 1
    break
  end
  if not (at == time and id >= last) then
    local v = redis.call("HMGET", KEY.job .. id, "state", "function", "error", "owner")
    local fits = v[1] and (state == "" or v[1] == state or (state == "open" and not TERMINAL[v[1]]))
      and (fn == "" or v[2] == fn) and (code == "" or v[3] == code) and (owner == "" or (v[4] or "default") == owner)
    if fits then found[#found + 1] = whole(id, false) end
    seen_time, seen_id = at, id
    if #found >= wanted then
      if i + 1 < #entries then ended = 0 end
      break
    end
  end
end
return {found, ended, seen_time, seen_id}
