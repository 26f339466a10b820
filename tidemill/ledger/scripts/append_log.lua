-- Purpose: append lines to the live log of a job; the newest are kept.
-- KEYS:    1 prefix
-- ARGV:    1-5 token (id, generation, epoch, attempt, nonce), 6 lines kept, then two for each line: stream, text
-- Reply:   1, or 0 for a stale token
-- States:  running, committed (stay)
if not EPOCH then return NO_EPOCH end
local id = held(1)
if not id then return 0 end
for i = 7, #ARGV, 2 do
  redis.call("XADD", KEY.log .. id, "MAXLEN", ARGV[6], "*", "stream", ARGV[i], "text", ARGV[i + 1])
end
return 1
