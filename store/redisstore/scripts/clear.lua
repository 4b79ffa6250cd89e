-- clear: take slots away from their holders, and hand on the room.
--
-- KEYS     S, M, Q, L, E
-- ARGV     header (see prelude), grace, slot ('': all that are held), ttl, and '1' if this is
--          the last page whatever is left
-- Returns  the time and number (see reply); how many slot ids were taken; how many are left
--          to take; and last the words (see push) to the caller's own process.
--
-- A call takes a thousand slots at most, the first to lapse first, so that it holds up nobody
-- else. Room is handed on when none is left: what was just granted is not to be taken.
--
-- A lease that was taken leaves a tombstone for ttl, so that its holder cannot put
-- it back while the server recovers.

-- @prelude

GRACE = A[2] + 0
local only, ttl, last = A[3], A[4] + 0, A[5] == '1'
local PAGE = 1000
call('ZREM', K[1], '') -- see touch
fetch(1)
count()
local taken, left = 0, 0
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
	-- A lease of weight 1 has no record: its slot id says whose it was. One of TryAcquire is
	-- shorter, and is not renewed.
	if state or score and #slot ~= 14 then
		-- Its holder may put back what is gone for as long as it believes in it.
		local ends = math.max(ttl, (score or now) - now + 5000)
		call('HSET', M, slot, string.format('d %.0f', now + ends))
		keepM(ends)
		wake = wake or #slot == 27 and string.sub(slot, 1, 6)
		if wake then push(wake, slot) end
	end
end
if only ~= '' then
	local r = call('HGET', M, only)
	if not r or string.find(r, '^[hg]') then take(only, r) end
else
	local page = call('ZRANGE', S, 0, PAGE - 1)
	local records = #page > 0 and call('HMGET', M, unpack(page))
	for j, slot in ipairs(page) do take(slot, records[j]) end
	left = call('ZCARD', S)
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
if left == 0 or last then advance() end
save(true)
return reply({now, taken, left})
