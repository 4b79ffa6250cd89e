-- release, bare: give back slots of ids that have no line.
--
-- KEYS     S of each id, then M of each
-- ARGV     flags; then per id: n slot ... Flags: 1 to look for lapsed slots, and 4 times
--          the number of the call.
-- Returns  the number of the call; per id 1 if there was something to give back, else 0; or, for an id that
--          has meta, -1: nothing was done, release.lua is the one to ask. For a single
--          slot, one integer alone: that times 1024, plus the number.
local call, K, A = redis.call, KEYS, ARGV
local flags = A[1] % 4
local number, sweep = (A[1] - flags) / 4, flags == 1
if #A == 3 and not sweep then
	if call('EXISTS', K[2]) == 1 then return number - 1024 end
	return call('ZREM', K[1], A[3]) * 1024 + number
end
local now
if sweep then
	local time = call('TIME')
	now = string.format('%.0f', time[1] * 1000 + (time[2] - time[2] % 1000) / 1000)
end
local out, o, i, ids = {number}, 1, 2, #K / 2
local meta = call('EXISTS', unpack(K, ids + 1)) > 0 -- some id has it
for k = 1, ids do
	local S, n = K[k], A[i] + 0
	if meta and call('EXISTS', K[ids + k]) == 1 then
		o = o + 1
		out[o] = -1
	else
		o = o + 1
		if n == 1 then
			out[o] = call('ZREM', S, A[i + 1])
		else -- which of them were there is not worth a look
			out[o] = call('ZREM', S, unpack(A, i + 1, i + n)) > 0 and 1 or 0
		end
		if sweep then
			local dead = call('ZRANGE', S, '-inf', now, 'BYSCORE', 'LIMIT', 0, 1000)
			if #dead > 0 then call('ZREM', S, unpack(dead)) end
		end
	end
	i = i + 1 + n
end
return out
