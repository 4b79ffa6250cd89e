-- joint: take slots of several ids, all of them or none; for several leases of the same ids.
--
-- KEYS     as acquire's: S of each id, then M of each, Q of each, L of each; last E.
-- ARGV     header (see prelude), then per id what acquire's has for slots that are alike:
--          -n grace weight limit ttl queue ticket flags owner slot ... The n leases are those
--          of all ids, in the same order; nobody waits, so a queue says no more than the share
--          of the limit, and the ticket is 0.
-- Returns  the time and number (see reply); per lease which id refuses it, or 0; per lease
--          that is refused outcome, active, limit, waiting, ms of that id, as acquire's; per id
--          its limit, and per lease that is granted active and fence there, if one is; and last
--          the words to the caller's own process. Nothing but the time and number: it came
--          too late, and did nothing.
--
-- First every id is judged, then it is decided about the leases one after the other, and then
-- all is taken. A refusal writes nothing but what is mended in passing: room is handed to whom
-- it is due.

-- @prelude

if now > LATEST + 0 then return reply({0}) end

-- @include claim

local LEASES = -A[2]
local function argsOf(k) return 2 + (LEASES + 9) * (k - 1) end

-- judge says how many of the leases there is room for at the k-th id, and what those hear
-- for whom there is none.
local function judge(k)
	local a = argsOf(k)
	GRACE = A[a + 1] + 0
	if SEEN == AWAY then recovering() end
	fetch(k)
	count()
	sweep()
	if waiting > 0 then advance() end
	local weight, limit, queue = A[a + 2] + 0, set or A[a + 3] + 0, A[a + 5] + 0
	local lim = limit
-- @include share
	local v = {room = 0, outcome = 0, ms = 0, limit = limit, weight = weight, had = {}}
	if A[a + 7] % 4 < 2 then -- asked again
		for j = 1, LEASES do
			local score = call('ZSCORE', S, A[a + 8 + j])
			v.had[j] = score and score + 0 > now
		end
	end
	if lim > 0 and weight > lim then
		v.outcome = 4
	else
		if waiting == 0 and lim > 0 then
			fits(LEASES * weight, lim)
			v.room = math.max(0, math.floor((lim - active) / weight))
		end
		if v.room < LEASES then v.ms = lapse() end
		if v.room > 0 and recovering() > 0 then
			v.room, v.outcome, v.ms = 0, doubt and 6 or 5, recovered
		end
	end
	save()
	v.active, v.waiting = active, waiting
	return v
end

local ids = {}
for k = 1, IDS do ids[k] = judge(k) end

local out, granted = {0}, {}
for j = 1, LEASES do
	local no = 0
	for k = 1, IDS do
		if ids[k].room < 1 and not ids[k].had[j] then
			no = k
			break
		end
	end
	out[1 + j] = no
	if no == 0 then
		granted[#granted + 1] = j
		for _, v in ipairs(ids) do
			if not v.had[j] then v.room, v.active = v.room - 1, v.active + v.weight end
		end
	end
end
local o = #out
for j = 1, LEASES do
	local v = ids[out[1 + j]]
	if v then
		out[o + 1], out[o + 2], out[o + 3], out[o + 4], out[o + 5] = v.outcome, v.active, v.limit, v.waiting, v.ms
		o = o + 5
	end
end
for k = 1, #granted > 0 and IDS or 0 do
	local a, v = argsOf(k), ids[k]
	GRACE = A[a + 1] + 0
	fetch(k)
	count()
	o = o + 1
	out[o] = v.limit
	local ttl, sure = A[a + 4] + 0, A[a + 7] % 4 > 1
	for _, j in ipairs(granted) do
		local slot = A[a + 8 + j]
		local r, fence = not new and not sure and call('HGET', M, slot), nil
		if v.had[j] then
			claim(slot, r, ttl)
			fence = r and string.match(r, '^[hg]') and fenceOf(r) or above()
		else
			if r then call('HDEL', M, slot) end -- a tombstone must not outlive it
			fence = grant(slot, v.weight, ttl, false, WAKE, A[a + 8], 'h')
		end
		out[o + 1], out[o + 2] = active, fence
		o = o + 2
	end
	save()
end
return reply(out)
