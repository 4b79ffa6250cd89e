-- acquire: take slots, keep a place in line, or be refused.
--
-- KEYS     per id four: S (holders), M (meta), Q (line), L (limit set by hand);
--          last, if any request asks for grace, E (the marker).
-- ARGV     header (see prelude), then per id: n grace
--          (slot weight limit ttl queue ticket bare owner) ...
-- Returns  the server's time in ms; per slot outcome, active, limit, waiting, place,
--          fence, ticket, ms; and last the slot ids of the caller's own process that
--          were granted on the way. Outcomes: 0 full, 1 granted, 2 waiting, 3 line
--          full, 4 too heavy, 5 recovering, 6 ask again (see doubt). ms: until the next slot lapses (refused),
--          until it is worth asking again (waiting), until grants are made again
--          (recovering).
--
-- A slot id that is there already is answered its grant again: asking twice is asking
-- once. A refusal writes nothing.

-- The plain case first, before any function is made, which costs more than all of it: one
-- new lease of weight 1, with room, nobody in line, no limit set by hand, nothing weighted,
-- and a marker that was looked at within the last second and says that all is well.
do
	local call, K, A = redis.call, KEYS, ARGV
	local S, M, E, slot = K[1], K[2], K[5], A[4]
	if #A == 11 and not K[6] and A[5] == '1' and A[10] == '0' and string.byte(A[1]) == 48 and call('EXISTS', K[3], K[4]) == 0 then
		local time = call('TIME')
		local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
		local meta = call('HGET', M, '')
		local fence, ticket, extra, recounted = string.match(meta or '0 0 0 0', '^(%d+) (%d+) (%d+) (%d+)$')
		local active = call('ZCOUNT', S, string.format('(%.0f', now), '+inf')
		local plain = extra == '0' and active < A[6] + 0 and not (meta and call('HGET', M, slot))
		if plain and A[3] ~= '0' then
			local seen, echo, ago = string.match(A[1], '(%d) (%d+) (%d+)$')
			local jump = echo == '0' and 0 or now - echo - ago
			local e = call('HMGET', E, 'rid', 'grace', 'seen')
			local age = now - (e[3] or 0)
			plain = (seen == '0' or seen == '1') and jump <= 400 and jump >= -400 and e[1] and e[2] + 0 <= now and age >= 0 and age <= 1000
			local info = plain and redis.pcall('INFO', 'replication')
			plain = plain and type(info) == 'string' and string.match(info, 'master_replid:(%x+)') == e[1]
		end
		if plain then
			local ttl = A[7] + 0
			fence = fence + 1
			local micros = time[1] * 1000000 + time[2]
			if micros > fence then fence = micros end
			local long = math.floor(ttl * 1.125) + 20
			call('ZADD', S, string.format('%.0f', now + ttl), slot)
			if active == 0 or call('PTTL', S) < ttl then call('PEXPIRE', S, long) end
			call('HSET', M, '', string.format('%.0f %s %s %s', fence, ticket, extra, recounted), slot,
				string.format('h 1 %.0f %.0f %s %s', fence, now, string.match(A[1], '^%d %d (%S+)'), A[11]))
			if not meta or call('PTTL', M) < ttl then call('PEXPIRE', M, long) end
			return {A[3] == '0' and -now or now, 1, active + 1, A[6] + 0, 0, 0, fence, 0, 0}
		end
	end
end

-- @prelude

local out, o = {now}, 1

-- claim answers a slot that is held or was granted to a waiter.
local function claim(slot, r, ttl)
	write()
	call('ZADD', S, 'GT', now + ttl, slot)
	if r and string.byte(r) == 103 then
		call('HSET', M, slot, 'h' .. string.sub(r, 2))
	end
	keep(S, ttl)
	if r then keepM(ttl) end
end

local lineKept -- Q of the id at hand lives for another LIFE

-- one decides about one request, and returns outcome, place and fence, ticket.
local function one(slot, weight, limit, ttl, queue, ticket, bare, owner, r)
	local lim = set or limit
	local state = r and string.byte(r)
	if state == 104 or state == 103 then -- h, g
		local score = call('ZSCORE', S, slot)
		if score and (score + 0 > now or recovering() > 0 and not doubt) then
			claim(slot, r, ttl)
			return 1, 0, fenceOf(r), 0
		end
	elseif state == 119 then -- w
		local ticket0 = call('ZSCORE', Q, slot)
		if ticket0 then
			write()
			if lim > 0 and weight > lim then
				leave(slot)
				return 4, 0, 0, 0
			end
			call('HSET', M, slot, waiter(weight, limit, owner))
			keepM(LIFE)
			if not lineKept then -- once for all who ask together
				keep(Q, LIFE)
				lineKept = true
			end
			return 2, 0, 0, ticket0 + 0
		end
	elseif bare then
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

local i, k = 2, 1
while A[i] do
	local n, first = A[i] + 0, i + 2
	GRACE = A[i + 1] + 0
	if SEEN == '3' then recovering() end
	open(k)
	survey()
	lineKept = false
	local slots = {}
	for j = 1, n do
		local a = first + 8 * (j - 1)
		slots[j] = A[a]
		present[A[a]] = A[a + 3] + 0
	end
	advance()
	if #fields > 1 then flush() end
	local recs = new and {} or call('HMGET', M, unpack(slots))
	local got, asked = {}, {}
	for j = 1, n do
		local a = first + 8 * (j - 1)
		got[j] = asked[slots[j]] or {one(slots[j], A[a + 1] + 0, A[a + 2] + 0, A[a + 3] + 0, A[a + 4] + 0, A[a + 5] + 0, A[a + 6] == '1', A[a + 7], recs[j])}
		got[j][5] = active
		asked[slots[j]] = got[j] -- asked twice at once
	end
	advance() -- who came back may be the head, and there may be room
	for j = 1, n do
		local a, g = first + 8 * (j - 1), got[j]
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
	i = first + 8 * n
	k = k + 4
end
return finish(out)
