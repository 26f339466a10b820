-- Purpose: give a leader lease up.
-- KEYS:    1 prefix
-- ARGV:    1 name, 2 holder
-- Reply:   1, or 0 when the holder does not have it
-- States:  none
if redis.call("GET", KEY.lock .. ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call("DEL", KEY.lock .. ARGV[1])
