-- Purpose: remember why an object is no job; the time is of the first note with this reason, the newest are kept.
-- KEYS:    1 prefix
-- ARGV:    1 bucket/key, 2 reason, 3 objects kept
-- Reply:   1 when it is news, else 0
-- States:  none
local old = redis.call("HGET", KEY.ignored, ARGV[1])
if old and cjson.decode(old)[1] == ARGV[2] then return 0 end
redis.call("HSET", KEY.ignored, ARGV[1], cjson.encode({ARGV[2], text(NOW)}))
redis.call("ZADD", KEY.ignored_at, NOW, ARGV[1])
local spare = redis.call("ZRANGE", KEY.ignored_at, 0, -(tonumber(ARGV[3]) + 1))
for _, name in ipairs(spare) do
  redis.call("ZREM", KEY.ignored_at, name)
  redis.call("HDEL", KEY.ignored, name)
end
return 1
