-- Purpose: replace the grants of a function. A number tells them from those before: what was used of old ones does not
--          come back to new ones.
-- KEYS:    1 prefix
-- ARGV:    1 function, 2 placement (JSON), 3 leader's fence ("" = none), then two for each grant: agent, number
-- Reply:   1, or 0 for an old fence
-- States:  none
if not EPOCH then return NO_EPOCH end
if deposed(ARGV[3]) then return 0 end
local key = KEY.grants .. ARGV[1]
redis.call("DEL", key)
for i = 4, #ARGV, 2 do
  if tonumber(ARGV[i + 1]) > 0 then
    redis.call("HSET", key, "", ARGV[2], "#", text(NOW), ARGV[i], ARGV[i + 1])
  end
end
return 1
