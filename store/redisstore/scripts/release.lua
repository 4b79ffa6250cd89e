-- release: give back slots or places in line, and hand on the room.
--
-- KEYS     S, M, Q, L of each id, as in acquire.lua; last E.
-- ARGV     header (see prelude), then per id: n grace slot ...
-- Returns  the time and number (see finish); per id either 1, if there was something to give
--          back of each of its slots, or -1, and per slot 1 if there was, else 0; and last
--          the words (see push) to the caller's own process.

-- The plain case first, as in acquire.lua: leases of weight 1 of ids with nobody in line.
local out, later = {0}, nil
do
	local call, K, A = redis.call, KEYS, ARGV
	local ids = (#K - #K % 4) / 4
	local plain, line = string.byte(A[1]) == 48, nil
	if plain and ids == 1 and A[2] == '1' then
		line = call('ZRANGE', K[3], '0', '1')
		plain = not line[1]
	elseif plain then
		plain = call('EXISTS', unpack(K, 2 * ids + 1, 3 * ids)) == 0
	end
	if plain then
		local time = call('TIME')
		local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
		local micros = time[1] * 1000000 + time[2]
		local i, o = 2, 1
		out[1] = -now * 1024 - string.match(A[1], '^%d %d %S+ (%d+)')
		for k = 1, ids do
			local S, M, n = K[k], K[ids + k], A[i] + 0
			local r
			if n == 1 then
				r = call('HMGET', M, '', A[i + 2])
			else
				r = call('HMGET', M, '', unpack(A, i + 2, i + 1 + n))
			end
			local fence, ticket, extra = string.match(r[1] or '0 0 0 0', '^(%d+) (%d+) (%d+) %d+$')
			local ok, known = extra == '0', 0
			for j = 2, n + 1 do
				if r[j] then
					known = known + 1
					local state = string.byte(r[j])
					ok = ok and (state == 104 or state == 103) -- h, g
				end
			end
			if ok and n > 1 then -- given back twice at once: not plain
				local seen = {}
				for j = i + 2, i + 1 + n do
					ok = ok and not seen[A[j] ]
					seen[A[j] ] = true
				end
			end
			if ok then
				local scores
				if n == 1 then
					scores = {call('ZSCORE', S, A[i + 2])}
					if scores[1] then call('ZREM', S, A[i + 2]) end
				else
					-- Where nothing has lapsed, and each has its record, each is there.
					if known < n or call('ZCOUNT', S, '-inf', string.format('%.0f', now)) > 0 then
						scores = call('ZMSCORE', S, unpack(A, i + 2, i + 1 + n))
					end
					call('ZREM', S, unpack(A, i + 2, i + 1 + n))
				end
				if r[1] and fence - micros < 0 and ticket - micros < 0 and call('HLEN', M) == known + 1 then
					call('DEL', M)
				elseif known > 0 then
					call('HDEL', M, unpack(A, i + 2, i + 1 + n))
				end
				if not scores or n == 1 and scores[1] and scores[1] + 0 > now then
					out[o + 1] = 1
					o = o + 1
				else
					out[o + 1] = -1
					for j = 1, n do out[o + 1 + j] = scores[j] and scores[j] + 0 > now and 1 or 0 end
					o = o + 1 + n
				end
			else
				later = later or {}
				later[#later + 1], later[#later + 2], later[#later + 3] = k, i, o
				out[o + 1] = -1
				o = o + 1 + n
			end
			i = i + 2 + n
		end
		if not later then return out end
	elseif line then
		-- The plain hand-off: a lease of weight 1 of a full id, to the head of the line, who
		-- lives and wants no more than that; and who is next lives too, and finds it full.
		local LIFE, CLAIM, LEAST = 3000, 2000, 1000 -- as in prelude.lua, and what follows as in its advance
		local S, M, Q, slot, head = K[1], K[2], K[3], A[4], line[1]
		local r = call('HMGET', M, '', slot, unpack(line))
		local fence, ticket, extra, recounted = string.match(r[1] or '', '^(%d+) (%d+) (%d+) (%d+)$')
		local ends, limit, wake, owner = string.match(r[3] or '', '^w (%d+) 1 (%d+) (%S+) (.*)$')
		local state = r[2] and string.byte(r[2])
		local until2, limit2 = string.match(r[4] or '', '^w (%d+) %d+ (%d+) ')
		if not line[2] then until2, limit2 = ends, limit end
		if ends and limit == limit2 and extra == '0' and (state == 104 or state == 103) and call('EXISTS', K[4]) == 0 then
			local shard, token, number, seen, echo, ago = string.match(A[1], '^%d (%d) (%S+) (%d+) (%d) (%d+) (%d+) %d+$')
			local time = call('TIME')
			local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
			local left, stamp = ends - now, now * 1024 + number
			local score = call('ZSCORE', S, slot)
			local ok = (seen == '0' or seen == '1') and left > 0 and left <= LIFE + 100 and until2 - now > 0 and score and score + 0 > now
				and call('ZCOUNT', S, string.format('(%.0f', now), '+inf') == limit + 0
			if ok and A[3] ~= '0' then -- what the marker says, as in acquire.lua
				local jump = echo == '0' and 0 or now - echo - ago
				local e = call('HMGET', K[5], 'rid', 'grace', 'seen')
				local age = now - (e[3] or 0)
				ok = jump <= 400 and jump >= -400 and e[1] and e[2] + 0 <= now and age >= 0 and age <= 1000
				local info = ok and redis.pcall('INFO', 'replication')
				ok = ok and type(info) == 'string' and string.match(info, 'master_replid:(%x+)') == e[1]
			elseif ok then
				stamp = -stamp
			end
			if ok then
				local claim = left < CLAIM and math.max(left, LEAST) or CLAIM
				local long = string.format('%.0f', now + claim * 1.125)
				fence = fence + 1
				local micros = time[1] * 1000000 + time[2]
				if micros > fence then fence = micros end
				call('ZREM', S, slot) -- first: a full server takes no ZADD before it
				call('ZADD', S, string.format('%.0f', now + claim), head)
				-- M lives as long as what was held; of S's end others may have thought differently.
				if call('PEXPIRETIME', S) < now + claim then call('PEXPIREAT', S, long) end
				call('ZREM', Q, head)
				call('HDEL', M, slot)
				call('HSET', M, '', string.format('%.0f %s 0 %s', fence, ticket, recounted), head, string.format('g 1 %.0f %.0f %s %s', fence, now, wake, owner))
				if score - now < claim and call('PEXPIRETIME', M) < now + claim then call('PEXPIREAT', M, long) end
				local word = string.format('%.0f %.0f %s %s', ends - LIFE, fence, limit, head)
				if wake == token then return {stamp, 1, word} end
				if shard == '1' then
					redis.pcall('SPUBLISH', 'gotsem:{' .. string.match(M, '^gotsem:{(.-)}') .. '}:wake:' .. wake, word)
				else
					redis.pcall('PUBLISH', 'gotsem:wake:' .. wake, word)
				end
				return {stamp, 1}
			end
		end
	end
end

-- @prelude

if not later then
	later = {}
	local i, o = 2, 1
	for k = 1, IDS do
		later[3 * k - 2], later[3 * k - 1], later[3 * k] = k, i, o
		out[o + 1] = -1
		local n = A[i] + 0 -- not in the line below: some Lua assigns i before it reads A[i]
		i, o = i + 2 + n, o + 1 + n
	end
end
for l = 1, #later, 3 do
	local k, i, o = later[l], later[l + 1], later[l + 2] + 1
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
	if #held > 0 then call('ZREM', S, unpack(held)) else call('ZREM', S, '') end -- see touch
	if #known > 0 then call('HDEL', M, unpack(known)) end
	if #dead > 0 and (freed or SWEEP == '1') then write() end
	advance()
	shut(true)
end
return finish(out)
