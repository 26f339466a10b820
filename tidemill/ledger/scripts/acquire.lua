-- Purpose: take or renew a leader lease. Works without an epoch, because its holder begins one.
-- KEYS:    1 prefix
-- ARGV:    1 name, 2 holder, 3 time to live (ms)
-- Reply:   the fence, which grows with each change of holder (also over a loss of the server); 0 = somebody else has it
-- States:  none
local holder = redis.call("GET", KEY.lock .. ARGV[1])
if holder and holder ~= ARGV[2] then return 0 end
redis.call("SET", KEY.lock .. ARGV[1], ARGV[2], "PX", ARGV[3])
if holder then return tonumber(redis.call("GET", KEY.fence .. ARGV[1])) end
local last = tonumber(redis.call("GET", KEY.fence .. ARGV[1]) or 0)
local fence = math.max(last + 1, math.floor(NOW / 1000))
redis.call("SET", KEY.fence .. ARGV[1], text(fence))
return fence
