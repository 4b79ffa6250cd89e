-- peers: say that a process lives, and count those that do and may have a share.
--
-- KEYS     P, a sorted set: token share owner -> when the process is given up
-- ARGV     token, ttl in ms, '1' if it may take a share while Redis is away, else '0'; and
--          its owner, '' if that is not said
-- Returns  how many processes that may have a share live
local call = redis.call
-- @include clock
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
local ends = string.format('%.0f', now + ARGV[2])
call('ZADD', KEYS[1], ends, ARGV[1] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
if call('PEXPIRETIME', KEYS[1]) < ends + 0 then call('PEXPIREAT', KEYS[1], ends) end
local live = 0
for _, member in ipairs(call('ZRANGE', KEYS[1], '0', '-1')) do
	if string.find(member, '^%S+ 1') then live = live + 1 end
end
return live
