-- Purpose: say which runners an agent shall have. An unknown agent is left alone.
-- KEYS:    1 prefix
-- ARGV:    1 agent, 2 wanted runners (JSON), 3 leader's fence ("" = none)
-- Reply:   1, or 0 for an unknown agent or an old fence
-- States:  none
if not EPOCH then return NO_EPOCH end
if deposed(ARGV[3]) then return 0 end
if redis.call("EXISTS", KEY.agent .. ARGV[1]) == 0 then return 0 end
redis.call("HSET", KEY.agent .. ARGV[1], "wanted", ARGV[2])
return 1
