-- Purpose: start a new life of the ledger. All leases end now; tokens of older epochs are stale from here on. Failed
--          starts are forgotten: they may be those of an older copy.
-- KEYS:    1 prefix
-- ARGV:    1 epoch, 2 sequence
-- Reply:   1, or 0 when the epoch here is not lower
-- States:  running, committed (their leases end)
if EPOCH and tonumber(ARGV[1]) <= EPOCH then return 0 end
redis.call("HSET", KEY.epoch, "epoch", ARGV[1], "sequence", ARGV[2])
-- One command over what runs now, which is bounded by the slots there are.
redis.call("ZUNIONSTORE", KEY.leases, 1, KEY.leases, "WEIGHTS", 0)
redis.call("DEL", KEY.failures, KEY.failure, KEY.failed_at)
return 1
