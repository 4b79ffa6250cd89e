-- release, bare: give back slots of ids that have no line.
--
-- KEYS     per id two: S, M
-- ARGV     '1' to look for lapsed slots; then per id: n slot ...
-- Returns  per slot 1 if there was something to give back, else 0; or, for an id that
--          has meta, once -1: nothing was done, release.lua is the one to ask. For a
--          single slot, a number alone.
local call, K, A = redis.call, KEYS, ARGV
local sweep = A[1] == '1'
if #A == 3 and not sweep then
	if call('EXISTS', K[2]) == 1 then return -1 end
	return call('ZREM', K[1], A[3])
end
local now
if sweep then
	local time = call('TIME')
	now = string.format('%.0f', time[1] * 1000 + (time[2] - time[2] % 1000) / 1000)
end
local out, o, i = {}, 0, 2
for k = 1, #K, 2 do
	local S, n = K[k], A[i] + 0
	if call('EXISTS', K[k + 1]) == 1 then
		o = o + 1
		out[o] = -1
	else
		if n == 1 then
			o = o + 1
			out[o] = call('ZREM', S, A[i + 1])
		else
			local scores = call('ZMSCORE', S, unpack(A, i + 1, i + n))
			call('ZREM', S, unpack(A, i + 1, i + n))
			local seen = {}
			for j = 1, n do
				local slot = A[i + j]
				out[o + j] = scores[j] and not seen[slot] and 1 or 0
				seen[slot] = true
			end
			o = o + n
		end
		if sweep then
			local dead = call('ZRANGE', S, '-inf', now, 'BYSCORE', 'LIMIT', 0, 1000)
			if #dead > 0 then call('ZREM', S, unpack(dead)) end
		end
	end
	i = i + 1 + n
end
return out
