-- release: give back slots or places in line, and hand on the room.
--
-- KEYS     per id four: S, M, Q, L; last, if there is grace, E.
-- ARGV     header (see prelude), then per id: n grace slot ...
-- Returns  the server's time in ms; per slot 1 if there was something to give
--          back, else 0; and last the slot ids of the caller's own process that
--          were granted.

-- The plain case first, as in acquire.lua: one lease of weight 1, and nobody in line.
do
	local call, K, A = redis.call, KEYS, ARGV
	local S, M, slot = K[1], K[2], A[4]
	if #A == 4 and string.byte(A[1]) == 48 and call('EXISTS', K[3]) == 0 then
		local r = call('HMGET', M, '', slot)
		local fence, extra = string.match(r[1] or '0 0 0 0', '^(%d+) %d+ (%d+) %d+$')
		if extra == '0' and (not r[2] or string.byte(r[2]) == 104) then -- h
			local time = call('TIME')
			local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
			local score = call('ZSCORE', S, slot)
			if score then call('ZREM', S, slot) end
			if r[2] then call('HDEL', M, slot) end
			if r[1] and call('HLEN', M) == 1 and fence - time[1] * 1000000 - time[2] < 0 then call('DEL', M) end
			return {-now, score and score + 0 > now and 1 or 0}
		end
	end
end

-- @prelude

local out, o = {now}, 1
local i, k = 2, 1
while A[i] do
	local n = A[i] + 0
	GRACE = A[i + 1] + 0
	open(k)
	if waiting > 0 or extra > 0 or SWEEP == '1' then survey() end
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
				deadExtra = deadExtra - (weight - 1) -- survey took it for lapsed
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
	if #held > 0 then call('ZREM', S, unpack(held)) end
	if #known > 0 then call('HDEL', M, unpack(known)) end
	if #dead > 0 and (freed or SWEEP == '1') then write() end
	advance()
	shut(true)
	o = o + n
	i = i + 2 + n
	k = k + 4
end
return finish(out)
