-- Purpose: put or remove a function or a pool, or switch the draining of a pool; the version grows with each change
--          (also over a loss of the server: readers keep what they read at a version, and must never meet it again).
--          The failed starts of a function that is put or removed are forgotten, so that a deploy is a new try.
-- KEYS:    1 prefix
-- ARGV:    1 what (put_function, remove_function, put_pool, remove_pool, drain_pool), 2 name,
--          3 content (JSON), or whether to drain (0, 1), 4 leader's fence ("" = none),
--          5 of put_pool: whether it drains (0, 1; "" = as before, a new one does not)
-- Reply:   1, or 0 when there is nothing of that name to remove or to drain, and for an old fence
-- States:  none
if deposed(ARGV[4]) then return 0 end
local what, name = ARGV[1], ARGV[2]
local done = 1
if what == "put_function" or what == "remove_function" then
  for _, revision in ipairs(redis.call("HKEYS", KEY.failure)) do
    if string.sub(revision, 1, #name + 1) == name .. "@" then
      redis.call("HDEL", KEY.failures, revision)
      redis.call("HDEL", KEY.failure, revision)
      redis.call("HDEL", KEY.failed_at, revision)
    end
  end
end
if what == "put_function" then
  redis.call("HSET", KEY.functions, name, ARGV[3])
elseif what == "remove_function" then
  done = redis.call("HDEL", KEY.functions, name)
elseif what == "put_pool" then
  -- Agents of a removed pool drain; a pool that is new under an old name does not.
  local new = redis.call("HSET", KEY.pools, name, ARGV[3]) == 1
  if ARGV[5] == "1" then
    redis.call("SADD", KEY.draining, name)
  elseif ARGV[5] == "0" or new then
    redis.call("SREM", KEY.draining, name)
  end
elseif what == "remove_pool" then
  done = redis.call("HDEL", KEY.pools, name)
  if done == 1 then redis.call("SADD", KEY.draining, name) end
elseif redis.call("HEXISTS", KEY.pools, name) == 0 then
  done = 0
else
  redis.call(ARGV[3] == "1" and "SADD" or "SREM", KEY.draining, name)
end
if done == 1 then
  local last = tonumber(redis.call("GET", KEY.version) or 0)
  redis.call("SET", KEY.version, text(math.max(last + 1, math.floor(NOW / 1000))))
end
return done
