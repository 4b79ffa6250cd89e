-- peers: say that a process lives, and count those that do.
--
-- KEYS     P, a sorted set: the token of a process -> when it is given up
-- ARGV     token, ttl in ms
-- Returns  how many processes live
local time = redis.call('TIME')
local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
local ends = string.format('%.0f', now + ARGV[2])
redis.call('ZADD', KEYS[1], ends, ARGV[1])
if redis.call('PEXPIRETIME', KEYS[1]) < ends + 0 then redis.call('PEXPIREAT', KEYS[1], ends) end
return redis.call('ZCARD', KEYS[1])
