-- release: give back slots or places in line, and hand on the room.
--
-- KEYS     per id four: S, M, Q, L; last, if there is grace, E.
-- ARGV     header (see prelude), then per id: n grace slot ...
-- Returns  the server's time in ms; per slot 1 if there was something to give
--          back, else 0; and last the slot ids of the caller's own process that
--          were granted.

-- @prelude

local out, o = {now}, 1
local i, k = 2, 1
while A[i] do
	local n = A[i] + 0
	GRACE = A[i + 1] + 0
	open(k)
	local recs = call('HMGET', M, unpack(A, i + 2, i + 1 + n))
	local freed = false
	for j = 1, n do
		local slot, r = A[i + 1 + j], recs[j]
		local state, weight = string.match(r or '', '^(%a) (%d+)')
		out[o + j] = 0
		if state == 'w' then
			leave(slot)
			out[o + j] = 1
		elseif state ~= 'd' then
			local score = call('ZSCORE', S, slot)
			if score then
				call('ZREM', S, slot)
				if score + 0 > now then
					active = active - (weight or 1)
					out[o + j] = 1
				elseif weight then -- lapsed: open did not count it
					deadExtra = deadExtra - (weight - 1)
				end
			end
			if state then
				call('HDEL', M, slot)
				if score then extra = extra - (weight - 1) end
				dirty = true
			end
		end
		if out[o + j] == 1 then freed = true end
	end
	if freed or #dead > 0 then
		if waiting > 0 or SWEEP == '1' then write() end
		advance()
	end
	shut(true)
	o = o + n
	i = i + 2 + n
	k = k + 4
end
return finish(out)
