-- acquire, bare: take slots of weight 1 that nobody waits for, with nothing to
-- remember about them. This is the plain case, and most calls are it; what it does
-- not need, it does not pay for.
--
-- KEYS     S (holders) of each id, then M (meta) and L (limit set by hand) of each
-- ARGV     flags, ttl, keep (the ttl and a little, for the key); then per id: n limit
--          slot ... Flags: 1 to look for lapsed slots, 2 if none of the slots was ever
--          asked for before, and 4 times the number of the call.
-- Returns  the number of the call, by which its caller knows the reply from another
--          call's; per id with one slot: the active count if it is granted, else minus it, minus
--          one, and the ms until the next slot lapses. Per id with more: how many of the
--          first are granted, and the active count; if not all, the ms until the next
--          slot lapses, and how many of the others were there already, and which. For an
--          id that has meta (leases, a line, a limit set by hand), only -2^52: nothing was
--          done, acquire.lua is the one to ask. For a single slot that is granted,
--          one integer alone: the active count times 1024, plus the number.
--
-- A slot id that is there already is answered its grant again: asking twice is asking
-- once. A refusal writes nothing.
local call, K, A = redis.call, KEYS, ARGV
local time = call('TIME')
local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
local live = '(' .. time[1] .. string.sub('00000' .. time[2], -6, -4) -- printing a float costs more than a command
local expiry = string.format('%.0f', now + A[2])
local flags = A[1] % 4
local number, sweep, sure, keep = (A[1] - flags) / 4, flags % 2 == 1, flags > 1, A[3]
if #A == 6 and not sweep then
	local S = K[1]
	if call('EXISTS', K[2], K[3]) > 0 then return {number, -4503599627370496} end
	local active = call('ZCOUNT', S, live, '+inf')
	if active < A[5] + 0 then
		active = active + call('ZADD', S, expiry, A[6])
		-- A key that only lapsed slots keep may be shortened; no other may.
		if active == 1 then call('PEXPIRE', S, keep) else call('PEXPIRE', S, keep, 'GT') end
		return active * 1024 + number
	end
end
local out, o, i, ids = {number}, 1, 4, #K / 3
local meta = call('EXISTS', unpack(K, ids + 1)) > 0 -- some id has it
for k = 1, ids do
	local S, n, limit = K[k], A[i] + 0, A[i + 1] + 0
	i = i + 2
	if meta and call('EXISTS', K[ids + 2 * k - 1], K[ids + 2 * k]) > 0 then
		o = o + 1
		out[o] = -4503599627370496
	else
		local active = call('ZCOUNT', S, live, '+inf')
		local give = limit - active
		if give > n then give = n elseif give < 0 then give = 0 end
		if give > 0 then
			if sweep then
				local dead = call('ZRANGE', S, '-inf', string.sub(live, 2), 'BYSCORE', 'LIMIT', 0, 1000)
				if #dead > 0 then call('ZREM', S, unpack(dead)) end
			end
			if give == 1 then
				active = active + call('ZADD', S, expiry, A[i])
			else
				local add = {}
				for j = 1, give do
					add[2 * j - 1], add[2 * j] = expiry, A[i + j - 1]
				end
				active = active + call('ZADD', S, unpack(add))
			end
			if active == give then call('PEXPIRE', S, keep) else call('PEXPIRE', S, keep, 'GT') end
		end
		if n > 1 then
			out[o + 1], out[o + 2] = give, active
			o = o + 2
		elseif give == 1 then
			o = o + 1
			out[o] = active
		end
		if give < n then
			local first = call('ZRANGE', S, live, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
			local lapse = first[2] and first[2] - now or 0
			local again = {}
			if not sure then
				local scores
				if n - give == 1 then
					scores = {call('ZSCORE', S, A[i + give])}
				else
					scores = call('ZMSCORE', S, unpack(A, i + give, i + n - 1))
				end
				for j = 1, n - give do
					if scores[j] and scores[j] + 0 > now then again[#again + 1] = give + j end
				end
			end
			if n > 1 then
				out[o + 1], out[o + 2] = lapse, #again
				o = o + 2
				for j = 1, #again do out[o + j] = again[j] end
				o = o + #again
			elseif again[1] then
				o = o + 1
				out[o] = active
			else
				out[o + 1], out[o + 2] = -active - 1, lapse
				o = o + 2
			end
		end
	end
	i = i + n
end
return out
