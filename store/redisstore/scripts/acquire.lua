-- acquire: take slots, keep a place in line, or be refused.
--
-- KEYS     S (holders) of each id, then M (meta) of each, Q (line) of each, L (limit
--          set by hand) of each; last E (the marker).
-- ARGV     header (see prelude), then per id: n grace (slot weight limit ttl queue ticket
--          flags owner) ...; or, where all but the slots is the same: -n grace weight limit
--          ttl queue ticket flags owner slot ... A queue below zero is the share of the
--          limit that who does not wait may take, in thousandths; a ticket below zero how
--          many µs earlier than it comes a slot stands in line. Flags: 1 bare, 2 never
--          asked for before, 4 times the class (0: none, else 1 more than its place among
--          the classes).
-- Returns  the time and number (see reply); per id either how many of its slots, the first
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

-- @prelude

if now > LATEST + 0 then return reply({0}) end

-- @include claim

-- one decides about one request, and returns outcome, place and fence, ticket.
local function one(slot, weight, limit, ttl, queue, ticket, flags, owner, r, ticket0)
	local lim, bare, fresh = set or limit, flags % 2 == 1, flags % 4 > 1
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
	elseif weight == 1 and not fresh and state ~= 100 then -- d
		local score = call('ZSCORE', S, slot)
		if score and (score + 0 > now or not bare and recovering() > 0 and not doubt) then
			claim(slot, nil, ttl)
			return 1, 0, bare and 0 or above(), 0
		end
	end
-- @include share
	if lim > 0 and weight > lim then return 4, 0, 0, 0 end
	if waiting == 0 and fits(weight, lim) then
		-- Whoever stood in line and finds no marker knows that there was one.
		if recovering(ticket > 0) == 0 then
			if r then call('HDEL', M, slot) end -- a tombstone must not outlive it
			return 1, 0, grant(slot, weight, ttl, bare, WAKE, owner, 'h'), 0
		elseif doubt then
			return 6, 0, 0, 0
		elseif queue <= 0 then
			return 5, 0, 0, 0
		end
	end
	if queue <= 0 then return 0, 0, 0, 0 end
	if ticket <= 0 and waiting >= queue then return 3, 0, 0, 0 end
	return 2, 0, 0, join(slot, weight, limit, ticket, owner, flags)
end

local out, i, o = {0}, 2, 1
for k = 1, IDS do
	local n, base, step, same = A[i] + 0, i - 6, 8, nil -- as above
	if n < 0 then n, base, step, same = -n, i + 8, 1, i + 1 end
	GRACE = A[i + 1] + 0
	if SEEN == AWAY then recovering() end
	fetch(k)
	count()
	sweep()
	local lineKept = false -- Q lives for another LIFE
	local slots, sure, stood = {}, true, false
	for j = 1, n do
		local a = base + step * j
		slots[j] = A[a]
		a = same or a
		sure = sure and A[a + 6] % 4 > 1
		stood = stood or A[a + 5] + 0 > 0
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
			record(slot, waiter(A[a + 1], A[a + 2], A[a + 7], A[a + 6]))
			keepM(LIFE)
			if not lineKept then -- once for all who ask together
				keep(Q, LIFE)
				lineKept = true
			end
			got[j] = {2, 0, 0, ticket0 + 0}
		else
			got[j] = {one(slot, A[a + 1] + 0, A[a + 2] + 0, A[a + 3] + 0, A[a + 4] + 0, A[a + 5] + 0, A[a + 6] + 0, A[a + 7], recs[j], ticket0)}
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
	i = base + step * (n + 1)
	save()
end
return reply(out)
