-- peers: say that a process lives, and count those that do.
--
-- KEYS     P, a sorted set: the token of a process -> when it is given up
-- ARGV     token, ttl in ms
-- Returns  how many processes live
local time = redis.call('TIME')
local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
if redis.call('PTTL', KEYS[1]) < ARGV[2] + 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return redis.call('ZCARD', KEYS[1])
