-- Purpose: say which runners an agent shall have. An unknown agent is left alone.
-- KEYS:    1 prefix
-- ARGV:    1 agent, 2 wanted runners (JSON)
-- Reply:   1, or 0 for an unknown agent
-- States:  none
if not EPOCH then return NO_EPOCH end
if redis.call("EXISTS", KEY.agent .. ARGV[1]) == 0 then return 0 end
redis.call("HSET", KEY.agent .. ARGV[1], "wanted", ARGV[2])
return 1
