-- acquire: take slots, keep a place in line, or be refused.
--
-- KEYS     S (holders) of each id, then M (meta) of each, Q (line) of each, L (limit
--          set by hand) of each; last E (the marker).
-- ARGV     header (see prelude), then per id: n grace (slot weight limit ttl queue ticket
--          flags owner) ...; or, where all but the slots is the same: -n grace weight limit
--          ttl queue ticket flags owner slot ... Flags: 1 bare, 2 never asked for before.
-- Returns  the time and number (see finish); per id either how many of its slots, the first
--          ones, are granted, the others being refused, active after that, the fence of the first, and
--          ms; or -1, and per slot outcome, active, limit, waiting, place, fence, ticket, ms; and last
--          the words (see push) to the caller's own process. Nothing but the time and number: it
--          came too late, and did nothing. Outcomes: 0 full, 1 granted,
--          2 waiting, 3 line full, 4 too heavy, 5 recovering, 6 ask again (see doubt). ms:
--          until the next slot lapses (refused), until it is worth asking again (waiting),
--          until grants are made again (recovering).
--
-- A slot id that is there already is answered its grant again: asking twice is asking
-- once. A refusal writes nothing.

-- The plain case first, before any function is made, which costs more than all of it: new
-- leases of weight 1, granted or refused at once, of ids with nobody in line, no limit set by hand,
-- nothing weighted, and a marker that was looked at within the last second and says that
-- all is well. What is not plain is left for later.
local out, later = {0}, nil
do
	local call, K, A = redis.call, KEYS, ARGV
	local ids = (#K - #K % 4) / 4
	local plain = string.byte(A[1]) == 48 and call('EXISTS', unpack(K, 2 * ids + 1, 4 * ids)) == 0
	local wake, number, seen, echo, ago, latest
	if plain then wake, number, seen, echo, ago, latest = string.match(A[1], '^%d %d (%S+) (%d+) (%d) (%d+) (%d+) (%d+)$') end
	if seen == '0' or seen == '1' then
		local time = call('TIME')
		local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
		local micros, stamp = time[1] * 1000000 + time[2], now * 1024 + number
		local live, since = string.format('(%.0f', now), string.format(' %.0f %s ', now, wake)
		local well -- what the marker says; nil: it was not asked
		local none, taken = false, {} -- of the eight at hand nothing was there, as in bare.lua
		local marked -- the marker is there
		-- Printing a number costs more than a command: what is printed is used again.
		local ttlWas, highWas, expiry, ends, upper
		local i, o = 2, 1
		out[1] = -stamp
		if now > latest + 0 then return out end
		for k = 1, ids do
			local S, M, n, grace = K[k], K[ids + k], A[i] + 0, A[i + 1]
			local base, step, same = i - 6, 8, nil -- slot j is A[base + step * j]; what belongs to it follows, or follows same
			if n < 0 then n, base, step, same = -n, i + 8, 1, i + 1 end
			local first = same or i + 2
			local limit, ttl = A[first + 2], A[first + 3]
			local fresh, waits = true, false
			for a = first, same or first + 8 * n - 8, 8 do
				fresh = fresh and A[a + 1] == '1' and A[a + 2] == limit and A[a + 3] == ttl and A[a + 6] == '2'
				waits = waits or A[a + 4] ~= '0'
			end
			if k % 8 == 1 and ids > 2 then
				local last = k + 7 < ids and k + 7 or ids
				none = call('EXISTS', unpack(K, k, last)) == 0 and call('EXISTS', unpack(K, ids + k, ids + last)) == 0
			end
			local bare = none and not taken[S]
			local meta = fresh and not bare and call('HGET', M, '')
			local fence, ticket, extra, recounted = string.match(meta or '0 0 0 0', '^(%d+) (%d+) (%d+) (%d+)$')
			local ok, active, give = fresh and extra == '0', 0, 0
			if ok then
				active = bare and 0 or call('ZCOUNT', S, live, '+inf')
				give = limit - active
				if give > n then give = n elseif give < 0 then give = 0 end
				ok = give == n or not waits
			end
			if ok and give > 0 and grace ~= '0' then
				if well == nil then
					local jump = echo == '0' and 0 or now - echo - ago
					local e = call('HMGET', K[#K], 'rid', 'grace', 'seen')
					local age = now - (e[3] or 0)
					well = jump <= 400 and jump >= -400 and e[1] and e[2] + 0 <= now and age >= 0 and age <= 1000
					local info = well and redis.pcall('INFO', 'replication')
					well = well and type(info) == 'string' and string.match(info, 'master_replid:(%x+)') == e[1]
					if well then out[1] = stamp end
				end
				ok = well
			elseif ok and give > 0 and not marked then
				marked = true
				if call('EXISTS', K[#K]) == 0 then call('HSET', K[#K], 'made', '1') end
			end
			if ok then
				if give > 0 then
					taken[S] = true
					if ttl ~= ttlWas then
						ttlWas, expiry, ends = ttl, string.format('%.0f', now + ttl), string.format('%.0f', now + ttl * 1.125)
					end
					fence = fence + 1
					if micros > fence then fence = micros end
					local low = fence % 1000000
					if fence - low ~= highWas then
						highWas = fence - low
						upper = string.format('%.0f', highWas / 1000000)
					end
					local add, record, number = {}, {'', ''}, nil
					for j = 1, give do
						local a = base + step * j
						add[2 * j - 1], add[2 * j] = expiry, A[a]
						number = low < 1000000 and upper .. string.format('%06d', low) or string.format('%.0f', fence + j - 1)
						record[2 * j + 1], record[2 * j + 2] = A[a], 'h 1 ' .. number .. since .. A[(same or a) + 7]
						low = low + 1
					end
					record[2] = number .. ' ' .. ticket .. ' ' .. extra .. ' ' .. recounted
					call('ZADD', S, unpack(add))
					if active == 0 or call('PEXPIRETIME', S) < now + ttl then call('PEXPIREAT', S, ends) end
					call('HSET', M, unpack(record))
					if not meta or call('PEXPIRETIME', M) < now + ttl then call('PEXPIREAT', M, ends) end
				end
				local lapse = 0
				if give < n then
					local next = call('ZRANGE', S, live, '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
					lapse = next[2] and next[2] - now or 0
				end
				out[o + 1], out[o + 2], out[o + 3], out[o + 4] = give, active + give, give > 0 and fence or 0, lapse
				o = o + 4
			else
				later = later or {}
				later[#later + 1], later[#later + 2], later[#later + 3] = k, i, o
				o = o + 1 + 8 * n
			end
			i = base + step * (n + 1)
		end
		if not later then
			-- Whoever has never met the marker looks whether it is there (see finish).
			if not well and seen == '0' and call('HGET', K[#K], 'rid') then out[1] = stamp end
			return out
		end
	end
end

-- @prelude

if now > LATEST + 0 then return finish(out) end

-- claim answers a slot that is held or was granted to a waiter.
local function claim(slot, r, ttl)
	touch(S, ttl)
	write()
	call('ZADD', S, 'GT', string.format('%.0f', now + ttl), slot)
	if r and string.byte(r) == 103 then
		call('HSET', M, slot, 'h' .. string.sub(r, 2))
	end
	if r then keepM(ttl) end
end

-- one decides about one request, and returns outcome, place and fence, ticket.
local function one(slot, weight, limit, ttl, queue, ticket, bare, owner, r, fresh, ticket0)
	local lim = set or limit
	local state = r and string.byte(r)
	if state == 104 or state == 103 then -- h, g
		local score = call('ZSCORE', S, slot)
		if score and (score + 0 > now or recovering() > 0 and not doubt) then
			claim(slot, r, ttl)
			return 1, 0, fenceOf(r), 0
		end
	elseif state == 119 and ticket0 then -- w, and its limit was lowered under it
		write()
		leave(slot)
		return 4, 0, 0, 0
	elseif bare and not fresh then
		local score = call('ZSCORE', S, slot)
		if score and score + 0 > now then
			claim(slot, nil, ttl)
			return 1, 0, 0, 0
		end
	end
	if lim > 0 and weight > lim then return 4, 0, 0, 0 end
	if waiting == 0 and fits(weight, lim) then
		-- Whoever stood in line and finds no marker knows that there was one.
		if recovering(ticket ~= 0) == 0 then
			return 1, 0, grant(slot, weight, ttl, bare, WAKE, owner, 'h'), 0
		elseif doubt then
			return 6, 0, 0, 0
		elseif queue <= 0 then
			return 5, 0, 0, 0
		end
	end
	if queue <= 0 then return 0, 0, 0, 0 end
	if ticket == 0 and waiting >= queue then return 3, 0, 0, 0 end
	return 2, 0, 0, join(slot, weight, limit, ticket, owner)
end

-- What is left: of each id its number, where its arguments begin, and before where its
-- answers do.
if not later then
	later = {}
	local i, o = 2, 1
	for k = 1, IDS do
		local n = A[i] + 0
		later[3 * k - 2], later[3 * k - 1], later[3 * k] = k, i, o
		if n < 0 then
			i, o = i + 9 - n, o + 1 - 8 * n
		else
			i, o = i + 2 + 8 * n, o + 1 + 8 * n
		end
	end
end
for l = 1, #later, 3 do
	local k, i, o = later[l], later[l + 1], later[l + 2]
	local n, base, step, same = A[i] + 0, i - 6, 8, nil -- as above
	if n < 0 then n, base, step, same = -n, i + 8, 1, i + 1 end
	GRACE = A[i + 1] + 0
	if SEEN == '3' then recovering() end
	open(k)
	survey()
	local lineKept = false -- Q lives for another LIFE
	local slots, sure, stood = {}, true, false
	for j = 1, n do
		local a = base + step * j
		slots[j] = A[a]
		a = same or a
		sure = sure and A[a + 6] > '1'
		stood = stood or A[a + 5] ~= '0'
		present[slots[j]] = A[a + 3] + 0
	end
	if stood and waiting > 0 then
		touch(Q, LIFE)
		lineKept = true
	end
	advance()
	if #fields > 1 then flush() end
	local recs = (new or sure) and {} or call('HMGET', M, unpack(slots))
	local tickets = {} -- of those in line
	for j = 1, n do
		if recs[j] and string.byte(recs[j]) == 119 then
			tickets = call('ZMSCORE', Q, unpack(slots))
			break
		end
	end
	local got, asked = {}, {}
	for j = 1, n do
		local a, slot, ticket0 = same or base + step * j, slots[j], tickets[j]
		local lim = set or A[a + 2] + 0
		if asked[slot] then
			got[j] = asked[slot] -- asked twice at once
		elseif ticket0 and (lim <= 0 or A[a + 1] + 0 <= lim) then -- goes on waiting: most of a long line does
			write()
			record(slot, waiter(A[a + 1], A[a + 2], A[a + 7]))
			keepM(LIFE)
			if not lineKept then -- once for all who ask together
				keep(Q, LIFE)
				lineKept = true
			end
			got[j] = {2, 0, 0, ticket0 + 0}
		else
			got[j] = {one(slot, A[a + 1] + 0, A[a + 2] + 0, A[a + 3] + 0, A[a + 4] + 0, A[a + 5] + 0, A[a + 6] % 2 == 1, A[a + 7], recs[j], A[a + 6] > '1', ticket0)}
		end
		got[j][5] = active
		asked[slot] = got[j]
	end
	if #fields > 1 then flush() end
	advance() -- who came back may be the head, and there may be room
	o = o + 1
	out[o] = -1
	for j = 1, n do
		local a, g = same or base + step * j, got[j]
		local outcome, ms = g[1], 0
		local place, fence, act = 0, g[3], g[5]
		if outcome == 2 and given[slots[j]] then
			outcome, fence, act = 1, given[slots[j]], active
		elseif outcome == 2 then
			act = active
			place = (call('ZRANK', Q, slots[j]) or -1) + 1
			if place == 0 then outcome = 4 end -- dropped while advancing
			ms = place == 1 and lapse() or 0
			if recovered and recovered > 0 and not doubt then outcome, ms = 5, recovered end
		elseif outcome == 5 then
			ms = recovered
		elseif outcome ~= 1 then
			act, ms = active, lapse()
		end
		out[o + 1], out[o + 2], out[o + 3], out[o + 4] = outcome, act, set or A[a + 2] + 0, waiting
		out[o + 5], out[o + 6], out[o + 7], out[o + 8] = place, fence, g[4], ms
		o = o + 8
	end
	shut()
end
return finish(out)
