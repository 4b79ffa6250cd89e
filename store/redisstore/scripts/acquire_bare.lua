-- acquire, bare: take slots of weight 1 that nobody waits for, with nothing to
-- remember about them. This is the plain case, and most calls are it; what it does
-- not need, it does not pay for.
--
-- KEYS     per id three: S (holders), M (meta), L (limit set by hand)
-- ARGV     '1' to look for lapsed slots, ttl, keep (the ttl and a little, for the
--          key); then per id: n limit slot ...
-- Returns  per slot the active count if granted, else minus it, minus one, followed
--          by the ms until the next slot lapses; or, for an id that has meta (leases,
--          a line, a limit set by hand), once -2^52: nothing was done, acquire.lua is
--          the one to ask. For a single slot that is granted, a number alone.
--
-- A slot id that is there already is answered its grant again: asking twice is asking
-- once. A refusal writes nothing.
local call, K, A = redis.call, KEYS, ARGV
local time = call('TIME')
local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
local live = string.format('(%.0f', now)
local expiry = string.format('%.0f', now + A[2])
local sweep, keep = A[1] == '1', A[3]
if #A == 6 and not sweep then
	local S = K[1]
	if call('EXISTS', K[2], K[3]) > 0 then return {-4503599627370496} end
	local active = call('ZCOUNT', S, live, '+inf')
	if active < A[5] + 0 then
		active = active + call('ZADD', S, expiry, A[6])
		-- A key that only lapsed slots keep may be shortened; no other may.
		if active == 1 then call('PEXPIRE', S, keep) else call('PEXPIRE', S, keep, 'GT') end
		return active
	end
end
local out, o, i = {}, 0, 4
for k = 1, #K, 3 do
	local S, n, limit = K[k], A[i] + 0, A[i + 1] + 0
	i = i + 2
	if call('EXISTS', K[k + 1], K[k + 2]) > 0 then
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
				o = o + 1
				out[o] = active
			else
				local add = {}
				for j = 1, give do
					add[2 * j - 1], add[2 * j] = expiry, A[i + j - 1]
				end
				local before = active
				local added = call('ZADD', S, unpack(add))
				active = active + added
				for j = 1, give do
					out[o + j] = added == give and before + j or active
				end
				o = o + give
			end
			if active == give then call('PEXPIRE', S, keep) else call('PEXPIRE', S, keep, 'GT') end
		end
		if give < n then
			local scores
			if n - give == 1 then
				scores = {call('ZSCORE', S, A[i + give])}
			else
				scores = call('ZMSCORE', S, unpack(A, i + give, i + n - 1))
			end
			local first = call('ZRANGE', S, live, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
			local lapse = first[2] and first[2] - now or 0
			for j = 1, n - give do
				local score = scores[j]
				o = o + 1
				if score and score + 0 > now then
					out[o] = active
				else
					out[o], out[o + 1] = -active - 1, lapse
					o = o + 1
				end
			end
		end
	end
	i = i + n
end
return out
