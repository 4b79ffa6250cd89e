-- release: give back slots or places in line, and hand on the room.
--
-- KEYS     per id four: S, M, Q, L; last, if there is grace, E.
-- ARGV     header (see prelude), then per id: n grace slot ...
-- Returns  the server's time in ms; per slot 1 if there was something to give
--          back, else 0; and last the slot ids of the caller's own process that
--          were granted.
--
-- An id without meta has no line: there a release is a ZREM.
local call, K, A = redis.call, KEYS, ARGV
local out, o = {0}, 1
local hard, time, now, nows
local sweep = string.byte(A[1]) == 49
if sweep then
	time = call('TIME')
	now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
	nows = string.format('%.0f', now)
end
local i, k = 2, 1
while A[i] do
	local n = A[i] + 0
	if call('EXISTS', K[k + 1]) == 0 then
		if n == 1 then
			out[o + 1] = call('ZREM', K[k], A[i + 2])
		else
			local scores = call('ZMSCORE', K[k], unpack(A, i + 2, i + 1 + n))
			call('ZREM', K[k], unpack(A, i + 2, i + 1 + n))
			for j = 1, n do out[o + j] = scores[j] and 1 or 0 end
		end
		if sweep then
			local dead = call('ZRANGE', K[k], '-inf', nows, 'BYSCORE', 'LIMIT', 0, 1000)
			if #dead > 0 then call('ZREM', K[k], unpack(dead)) end
		end
	else
		hard = hard or {}
		hard[#hard + 1] = {i, k, o}
		for j = 1, n do out[o + j] = 0 end
	end
	o = o + n
	i = i + 2 + n
	k = k + 4
end
if not hard then return out end

if not sweep then
	time = call('TIME')
	now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
	nows = string.format('%.0f', now)
end
out[1] = now

-- @prelude

for _, h in ipairs(hard) do
	local i, k, o = unpack(h)
	local n = A[i] + 0
	GRACE = A[i + 1] + 0
	open(k)
	local recs = call('HMGET', M, unpack(A, i + 2, i + 1 + n))
	local freed = false
	for j = 1, n do
		local slot, r = A[i + 1 + j], recs[j]
		local state, weight = string.match(r or '', '^(%a) (%d+)')
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
end
return finish(out)
