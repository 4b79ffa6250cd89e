-- release: give back slots or places in line, and hand on the room.
--
-- KEYS     S, M, Q, L of each id, as in acquire.lua; last E.
-- ARGV     header (see prelude), then per id: n grace slot ...
-- Returns  the time and number (see reply); per id either 1, if there was something to give
--          back of each of its slots, or -1, and per slot 1 if there was, else 0; and last
--          the words (see push) to the caller's own process.

-- @prelude

local out, i, o = {0}, 2, 1
for k = 1, IDS do
	o = o + 1
	out[o] = -1
	local n = A[i] + 0
	GRACE = A[i + 1] + 0
	fetch(k)
	if waiting > 0 or extra > 0 or SWEEP == '1' then count() end
	local recs = call('HMGET', M, unpack(A, i + 2, i + 1 + n))
	local scores = call('ZMSCORE', S, unpack(A, i + 2, i + 1 + n))
	local held, known, seen, freed = {}, {}, {}, false
	for j = 1, n do
		local slot, score, r = A[i + 1 + j], scores[j], recs[j]
		if seen[slot] then score, r = nil, nil end -- given back twice at once
		seen[slot] = true
		local state, weight = string.match(r or '', '^(%a) (%d+)')
		weight = (state == 'h' or state == 'g') and weight + 0 or 1
		if state == 'w' then
			call('ZREM', Q, slot)
			waiting = waiting > 0 and waiting - 1 or 0
		end
		if score and state ~= 'd' then
			held[#held + 1] = slot
			if score + 0 > now then
				active = active - weight
			else
				deadExtra = deadExtra - (weight - 1) -- count took it for lapsed
			end
			if weight ~= 1 then
				extra = extra - (weight - 1)
				dirty = true
			end
		end
		if state and state ~= 'd' then known[#known + 1] = slot end
		if state == 'w' or state ~= 'd' and score and score + 0 > now then
			out[o + j] = 1
			freed = true
		else
			out[o + j] = 0
		end
	end
	if #held > 0 then call('ZREM', S, unpack(held)) else call('ZREM', S, '') end -- see touch
	if #known > 0 then call('HDEL', M, unpack(known)) end
	if #dead > 0 and (freed or SWEEP == '1') then write() end
	advance()
	save(true)
	i, o = i + 2 + n, o + n
end
return reply(out)
