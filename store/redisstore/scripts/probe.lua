-- probe: do what an acquire needs, and leave nothing: a server that is full, or takes no
-- writes, refuses it.
--
-- KEYS     a key of its own, in the cluster slot of the id that is meant
-- ARGV     none
-- Returns  1
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], '1', 'probe')
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', time[1] * 1000 + 60000))
redis.call('DEL', KEYS[1])
return 1
