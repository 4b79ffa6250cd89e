-- joint: take slots of several ids, all of them or none.
--
-- KEYS     as acquire's: S of each id, then M of each, Q of each, L of each; last E.
-- ARGV     header (see prelude), then per id what acquire's has: 1 grace slot weight limit
--          ttl queue 0 flags owner; the queue says no more than the share of the limit.
-- Returns  the time and number (see reply); 0 if all are granted, and per id active, limit,
--          fence; or which id refuses, and outcome, active, limit, waiting, ms of that, as
--          acquire's, and last the words to the caller's own process. Nothing but the time
--          and number: it came too late, and did nothing.
--
-- First every id is judged, and then all are taken. A refusal writes nothing but what is
-- mended in passing: room is handed to whom it is due.

-- @prelude

if now > LATEST + 0 then return reply({0}) end

-- @include claim

local out, had = {0, 0}, {}

for k = 1, IDS do
	local a = 10 * k - 8
	GRACE = A[a + 1] + 0
	if SEEN == AWAY then recovering() end
	fetch(k)
	count()
	sweep()
	if waiting > 0 then advance() end
	local slot, weight, limit, queue = A[a + 2], A[a + 3] + 0, set or A[a + 4] + 0, A[a + 6] + 0
	local lim, outcome, ms = limit, 1, 0
-- @include share
	local score = A[a + 8] % 4 < 2 and call('ZSCORE', S, slot)
	if score and score + 0 > now then
		had[k] = true -- asked again
	else
		if lim > 0 and weight > lim then
			outcome = 4
		elseif waiting > 0 or not fits(weight, lim) then
			outcome, ms = 0, lapse()
		elseif recovering() > 0 then
			outcome, ms = doubt and 6 or 5, recovered
		end
	end
	save()
	if outcome ~= 1 then return reply({0, k, outcome, active, limit, waiting, ms}) end
end
for k = 1, IDS do
	local a = 10 * k - 8
	GRACE = A[a + 1] + 0
	fetch(k)
	count()
	local slot, ttl, fence = A[a + 2], A[a + 5] + 0, nil
	local r = not new and call('HGET', M, slot)
	if had[k] then
		claim(slot, r, ttl)
		fence = r and string.match(r, '^[hg]') and fenceOf(r) or above()
	else
		if r then call('HDEL', M, slot) end -- a tombstone must not outlive it
		fence = grant(slot, A[a + 3] + 0, ttl, false, WAKE, A[a + 9], 'h')
	end
	local o = #out
	out[o + 1], out[o + 2], out[o + 3] = active, set or A[a + 4] + 0, fence
	save()
end
return reply(out)
