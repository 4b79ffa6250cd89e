-- clear: take slots away from their holders, and hand on the room.
--
-- KEYS     S, M, Q, L, E
-- ARGV     header (see prelude), grace, slot ('': all that are held), ttl
-- Returns  the server's time in ms; how many slot ids were taken; and last the
--          words (see push) to the caller's own process.
--
-- A lease that was taken leaves a tombstone for ttl, so that its holder cannot put
-- it back while the server recovers.

-- @prelude

GRACE = A[2] + 0
local only, ttl = A[3], A[4] + 0
call('ZREM', K[1], '') -- see touch
open(1)
survey()
local taken = 0
local function take(slot, r)
	local state, weight, wake = string.match(r or '', '^([hg]) (%d+) %d+ %d+ (%S+)')
	local score = call('ZSCORE', S, slot)
	if score then
		call('ZREM', S, slot)
		if score + 0 > now then
			taken = taken + 1
			active = active - (weight or 1)
		else
			deadExtra = deadExtra - ((weight or 1) - 1)
		end
		extra = extra - ((weight or 1) - 1)
	end
	if state then
		call('HSET', M, slot, string.format('d %.0f', now + ttl))
		keepM(ttl)
		push(wake, slot)
	end
end
if only ~= '' then
	local r = call('HGET', M, only)
	if not r or string.find(r, '^[hg]') then take(only, r) end
else
	for _, slot in ipairs(call('ZRANGE', S, '0', '-1')) do take(slot, call('HGET', M, slot)) end
end
-- Tombstones whose time is over go when there are many: looking at all of M takes as long
-- as the line is.
if not new and call('HLEN', M) > waiting + call('ZCARD', S) + 64 then
	local all = call('HGETALL', M)
	for j = 1, #all, 2 do
		local ends = string.match(all[j + 1], '^d (%d+)')
		if ends and ends + 0 <= now then call('HDEL', M, all[j]) end
	end
end
advance()
shut(true)
return finish({now, taken})
