-- claim answers a slot that is held or was granted to a waiter.
local function claim(slot, r, ttl)
	touch(S, ttl)
	write()
	call('ZADD', S, 'GT', string.format('%.0f', now + ttl), slot)
	if r and string.byte(r) == 103 then
		call('HSET', M, slot, 'h' .. string.sub(r, 2))
	end
	if r then keepM(ttl) end
end
