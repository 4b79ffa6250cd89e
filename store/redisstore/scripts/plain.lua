-- plain: give back and take slots of weight 1 that nobody waits for. Nothing remembers
-- them but their member in S: the slot of a TryAcquire, and a lease, whose slot id says who
-- asked and when. This is the plain case, and most calls are it; what it does not need, it
-- does not pay for.
--
-- KEYS     S (holders) of each id that slots are given back of, S of each that they are taken
--          of, and last E, the marker. E says until when ids may have meta (a line, weights, a
--          tombstone, a limit set by hand); where they may, the call is to be made in full:
--          before E come M (meta) of each id that slots are given back of, and M and L (limit
--          set by hand) of each that they are taken of. S comes first, since a client may go
--          by the first key
-- ARGV     a number: 1 to look for lapsed slots, 2 if none of the slots that are taken was
--          ever asked for before, 4 if there is one slot of each id, and one limit, 8 if the
--          call is made in full, 16 if what is taken are leases, 32 times the number of the
--          call, and 32768 times how many ids are given back to; with 16: what the
--          server's clock should say (0: unknown, -1: the leases have no grace); per
--          id given back to: n slot ...; then, of those that are
--          taken, the ttl, and the latest time in ms at which they may be taken; and per id of these: n limit slot ..., where none was ever asked for before
--          no more slots than the limit. With 4: the slots that are given back; ttl
--          limit latest; and those that are taken
-- Returns  the time in ms (0: it was not looked at) times 1024, plus the number of the call, by
--          which its caller knows the reply from another call's (with 16 negative if the marker
--          was not met); and nothing else if ids may have meta, and nothing was done. With 16
--          the first fence, from which grants count up in the order of the reply (0: none).
--          Per id
--          given back to, 1 if there was something to give back, else 0; or -1.
--          Per id with one slot to take: the active count if it is granted, else minus it,
--          minus one, and the ms until the next slot lapses. Per id with more: how many of
--          the first are granted, and the active count; if not all, the ms until the next
--          slot lapses, and how many of the others were there already, and which; or only
--          -2^52. For an id that has meta, -1 and -2^52 say that
--          release.lua and acquire.lua are the ones to ask (so does -2^52 for leases of which
--          one was there already, and was to be answered a fence);
--          -2^52 + 1, that it is too late to take; -2^52 + 2, that the marker is to be looked at
--          closely, by acquire.lua.
--          For a single slot that is given back or granted, and no lease, one integer alone: what is said
--          above times 1024, plus the number.
--
-- A slot id that is there already is answered its grant again: asking twice is asking
-- once. A refusal writes nothing.
local call, K, A = redis.call, KEYS, ARGV
local head = A[1] + 0
local flags = head % 32
local number = (head % 32768 - flags) / 32
local gives = (head - head % 32768) / 32768
local sweep, sure, single, full, leases = flags % 2 == 1, flags % 4 > 1, flags % 8 > 3, flags % 16 > 7, flags > 15
local E = K[#K]
local takes = full and (#K - 1 - 2 * gives) / 3 or #K - 1 - gives
local i = leases and 3 or 2
local one = single and not leases and #A == 5 and gives == 0 and not sweep -- to take
local clear = false -- no holders of what is taken are there
local e -- what the marker says
if not full then
	if one and A[3] + 0 > 0 and call('EXISTS', K[1], E) == 0 then -- of an id that nobody holds
		local time = call('TIME')
		local now = time[1] * 1000 + time[2] / 1000
		if now <= A[4] + 0 then
			local expiry = string.format('%.0f', now + A[2])
			call('ZADD', K[1], expiry, A[5])
			local kept = redis.pcall('PEXPIREAT', K[1], expiry)
			if type(kept) == 'table' then -- no right to: nothing may stay that has no end
				call('ZREM', K[1], A[5])
				return kept
			end
			return 1024 + number
		end
	end
	local possible
	if leases then
		e = call('HMGET', E, 'rid', 'grace', 'seen', 'f', 'm')
		possible = e[5]
	else
		possible = call('HGET', E, 'm')
	end
	if possible and possible - call('TIME')[1] * 1000 > 0 then return {number} end
	if #A == 2 and not sweep then return call('ZREM', K[1], A[2]) * 1024 + number end -- one to give back
	-- Of a few ids nobody holds any, most often.
	clear = takes > 2 and takes < 9 and call('EXISTS', unpack(K, gives + 1, gives + takes)) == 0
end
local now, nows, time
if takes > 0 or sweep then
	time = call('TIME')
	now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
	nows = time[1] .. string.sub('00000' .. time[2], -6, -4) -- printing a float costs more than a command
end
local m, l = gives + takes, 2 * gives + takes -- M of the k-th to give back is K[m + k]; M and L of the k-th to take, K[l + 2k - 1] and K[l + 2k]
local meta = full and call('EXISTS', unpack(K, m + 1, #K - 1)) > 0 -- some id has it
if one and not meta and now <= A[4] + 0 then
	local active = call('ZCOUNT', K[1], '(' .. nows, '+inf')
	if active < A[3] + 0 then
		local expiry = string.format('%.0f', now + A[2])
		local new = call('ZADD', K[1], expiry, A[5])
		-- A key that only lapsed slots keep may be shortened; no other may.
		local kept
		if active == 0 then kept = redis.pcall('PEXPIREAT', K[1], expiry) else kept = redis.pcall('PEXPIREAT', K[1], expiry, 'GT') end
		if type(kept) == 'table' then
			call('ZREM', K[1], A[5])
			return kept
		end
		return (active + new) * 1024 + number
	end
end
local out, o = {now and now * 1024 + number or number}, 1
local well = not leases or nil -- what the marker says; nil: it was not asked
local fence, last -- of the first grant and the last one
if leases then out[2], o = 0, 2 end
for k = 1, gives do
	local S, n = K[k], 1
	if not single then n, i = A[i] + 0, i + 1 end
	o = o + 1
	if meta and call('EXISTS', K[m + k]) == 1 then
		out[o] = -1
	else
		if n == 1 then
			out[o] = call('ZREM', S, A[i])
		else -- which of them were there is not worth a look
			out[o] = call('ZREM', S, unpack(A, i, i + n - 1)) > 0 and 1 or 0
		end
		if sweep then
			local dead = call('ZRANGE', S, '-inf', nows, 'BYSCORE', 'LIMIT', '0', '1000')
			if #dead > 0 then call('ZREM', S, unpack(dead)) end
		end
	end
	i = i + n
end
if takes == 0 then return out end
local live, expiry, limit = '(' .. nows, string.format('%.0f', now + A[i]), nil
i = i + 1
if single then limit, i = A[i] + 0, i + 1 end
local late = now > A[i] + 0
i = i + 1
local none, taken = clear, {} -- of the eight at hand nobody held a slot, when they were looked at; of which ids one was taken since
for k = 1, takes do
	local S, n, named = K[gives + k], 1, 1
	if not single then
		n, limit = A[i] + 0, A[i + 1] + 0
		named, i = n, i + 2
		if sure and n > limit then named = limit > 0 and limit or 0 end
	end
	if takes > 2 and k % 8 == 1 and not clear then -- a look at eight keys costs not much more than a count of one
		none = call('EXISTS', unpack(K, gives + k, k + 7 < takes and gives + k + 7 or m)) == 0
	end
	if late then
		o = o + 1
		out[o] = -4503599627370495
	elseif meta and call('EXISTS', K[l + 2 * k - 1], K[l + 2 * k]) > 0 then
		o = o + 1
		out[o] = -4503599627370496
	else
		local active = none and not taken[S] and 0 or call('ZCOUNT', S, live, '+inf')
		local give = limit - active
		if give > n then give = n elseif give < 0 then give = 0 end
		if give > 0 and well == nil then
			e = e or call('HMGET', E, 'rid', 'grace', 'seen', 'f')
			fence = (e[4] or 0) + 1
			local micros = time[1] * 1000000 + time[2]
			if micros > fence then fence = micros end
			last = fence - 1
			well = A[2] == '-1'
			if not well then
				local jump = A[2] == '0' and 0 or now - A[2]
				if jump <= 400 and jump >= -400 and e[1] and e[2] + 0 <= now and now - (e[3] or 0) >= 0 then
					local info = redis.pcall('INFO', 'replication')
					well = type(info) == 'string' and string.match(info, 'master_replid:(%x+)') == e[1]
				end
			end
		end
		if give > 0 and not well then
			o = o + 1
			out[o] = -4503599627370494
			give, n = 0, 0
		elseif give > 0 then
			taken[S] = true
			if sweep then
				local dead = call('ZRANGE', S, '-inf', nows, 'BYSCORE', 'LIMIT', '0', '1000')
				if #dead > 0 then call('ZREM', S, unpack(dead)) end
			end
			local new
			if give == 1 then
				new = call('ZADD', S, expiry, A[i])
			else
				local add = {}
				for j = 1, give do
					add[2 * j - 1], add[2 * j] = expiry, A[i + j - 1]
				end
				new = call('ZADD', S, unpack(add))
			end
			local kept
			if active == 0 then kept = redis.pcall('PEXPIREAT', S, expiry) else kept = redis.pcall('PEXPIREAT', S, expiry, 'GT') end
			if type(kept) == 'table' then
				call('ZREM', S, unpack(A, i, i + give - 1))
				return kept
			end
			active = active + new
			if leases then last = last + give end
		end
		if n > 1 then
			out[o + 1], out[o + 2] = give, active
			o = o + 2
		elseif give == 1 then
			o = o + 1
			out[o] = active
		end
		if give < n then
			local first = call('ZRANGE', S, live, '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
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
			if leases and again[1] then
				if n > 1 then
					out[o], o = nil, o - 1
				else
					o = o + 1
				end
				out[o] = -4503599627370496
			elseif n > 1 then
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
	i = i + named
end
if leases then
	-- Whoever has never met the marker looks whether it is there, also when refused.
	e = e or {call('HGET', E, 'rid')}
	if A[2] == '-1' or not e[1] then out[1] = -out[1] end
	if well and last >= fence then
		out[2] = fence
		if A[2] == '-1' then
			call('HSET', E, 'f', string.format('%.0f', last))
		else
			call('HSET', E, 'f', string.format('%.0f', last), 'seen', nows)
		end
	end
end
return out
