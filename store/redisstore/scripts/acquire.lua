-- acquire: take slots, keep a place in line, or be refused.
--
-- KEYS     per id four: S (holders), M (meta), Q (line), L (limit set by hand);
--          last, if any request asks for grace, E (the marker).
-- ARGV     header (see prelude), then per id a group:
--            p n limit ttl keep  slot ...       bare slots of weight 1, no waiting
--            l n grace  (slot weight limit ttl queue ticket bare owner) ...
--          keep is the ttl and a little, for the key.
-- Returns  the server's time in ms; then per id
--            p: limit, how many wait, ms until the next slot lapses (0: nobody was
--               refused, or none is held), and per slot the active count if granted, else minus it, minus one
--            l: per slot outcome, active, limit, waiting, place, fence, ticket, ms
--          and last the slot ids of the caller's own process that were granted
--          on the way. Outcomes: 0 full, 1 granted, 2 waiting, 3 line full,
--          4 too heavy, 5 recovering.
--
-- A slot id that is there already is answered its grant again: asking twice is
-- asking once. A refusal writes nothing.
local call, K, A = redis.call, KEYS, ARGV
local time = call('TIME')
local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
local nows = string.format('%.0f', now)
local out, o = {now}, 1
local hard                -- groups that are not the plain case: {ARGV index, KEYS index, reply index}
local expiry, expiryTTL   -- now + the last ttl, as text: formatting costs as much as a command
local i, k = 2, 1
while A[i] do
	local n = A[i + 1] + 0
	if A[i] == 'p' then
		local S = K[k]
		if call('EXISTS', K[k + 1], K[k + 3]) == 0 then
			local limit, ttl = A[i + 2] + 0, A[i + 3]
			local active = call('ZCOUNT', S, '(' .. nows, '+inf')
			local give = limit - active
			if give > n then give = n elseif give < 0 then give = 0 end
			out[o + 1], out[o + 2], out[o + 3] = limit, 0, 0
			o = o + 3
			if give > 0 then
				if ttl ~= expiryTTL then expiry, expiryTTL = string.format('%.0f', now + ttl), ttl end
				if string.byte(A[1]) == 49 then
					local dead = call('ZRANGE', S, '-inf', nows, 'BYSCORE', 'LIMIT', 0, 1000)
					if #dead > 0 then call('ZREM', S, unpack(dead)) end
				end
				if give == 1 then
					local slot = A[i + 5]
					if call('ZADD', S, expiry, slot) == 1 then active = active + 1 end
					out[o + 1] = active
				else
					local add = {}
					for j = 1, give do
						add[2 * j - 1], add[2 * j] = expiry, A[i + 4 + j]
					end
					local before, added = active, call('ZADD', S, unpack(add))
					active = active + added
					for j = 1, give do
						out[o + j] = added == give and before + j or active
					end
				end
				-- A key that only lapsed slots keep may be shortened; no other may.
				if active == give then call('PEXPIRE', S, A[i + 4]) else call('PEXPIRE', S, A[i + 4], 'GT') end
			end
			if give < n then
				local scores
				if n - give == 1 then
					scores = {call('ZSCORE', S, A[i + 4 + n])}
				else
					scores = call('ZMSCORE', S, unpack(A, i + 5 + give, i + 4 + n))
				end
				for j = give + 1, n do
					local score = scores[j - give]
					if score and score + 0 > now then out[o + j] = active else out[o + j] = -active - 1 end
				end
				local first = call('ZRANGE', S, '(' .. nows, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
				if first[2] then out[o] = first[2] - now end
			end
			o = o + n
		else
			hard = hard or {}
			hard[#hard + 1] = {i, k, o}
			for j = 1, n + 3 do out[o + j] = 0 end
			o = o + n + 3
		end
		i = i + 5 + n
	else
		hard = hard or {}
		hard[#hard + 1] = {i, k, o}
		for j = 1, 8 * n do out[o + j] = 0 end
		o = o + 8 * n
		i = i + 3 + 8 * n
	end
	k = k + 4
end
if not hard then return out end

-- @prelude

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

-- one decides about one request, and returns outcome, place and fence, ticket.
local function one(slot, weight, limit, ttl, queue, ticket, bare, owner, r)
	local lim = set or limit
	local state = r and string.byte(r)
	if state == 104 or state == 103 then -- h, g
		local score = call('ZSCORE', S, slot)
		if score and (score + 0 > now or recovering() > 0) then
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
			keep(Q, LIFE)
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
		if recovering() == 0 then
			return 1, 0, grant(slot, weight, ttl, bare, WAKE, owner, 'h'), 0
		elseif queue <= 0 then
			return 5, 0, 0, 0
		end
	end
	if queue <= 0 then return 0, 0, 0, 0 end
	if ticket == 0 and waiting >= queue then return 3, 0, 0, 0 end
	return 2, 0, 0, join(slot, weight, limit, ticket, owner)
end

for _, h in ipairs(hard) do
	local i, k, o = unpack(h)
	local plain, n = A[i] == 'p', A[i + 1] + 0
	local size, first = 8, i + 3
	GRACE = 0
	if plain then size, first = 1, i + 5 else GRACE = A[i + 2] + 0 end
	open(k)
	local slots = {}
	for j = 1, n do
		slots[j] = A[first + size * (j - 1)]
		if not plain then present[slots[j]] = A[first + size * (j - 1) + 3] + 0 end
	end
	advance()
	local recs = new and {} or call('HMGET', M, unpack(slots))
	local got = {}
	for j = 1, n do
		local a = first + size * (j - 1)
		local limit, ttl = A[a + 2], A[a + 3]
		if plain then limit, ttl = A[i + 2], A[i + 3] end
		limit, ttl = limit + 0, ttl + 0
		if plain then
			got[j] = {one(slots[j], 1, limit, ttl, 0, 0, true, '', recs[j])}
		else
			got[j] = {one(slots[j], A[a + 1] + 0, limit, ttl, A[a + 4] + 0, A[a + 5] + 0, A[a + 6] == '1', A[a + 7], recs[j])}
		end
		got[j][5] = active
	end
	advance() -- who came back may be the head, and there may be room
	if plain then
		out[o + 1], out[o + 2], out[o + 3] = set or A[i + 2] + 0, waiting, 0
		for j = 1, n do
			if got[j][1] == 1 then
				out[o + 3 + j] = got[j][5]
			else
				out[o + 3 + j] = -active - 1
				out[o + 3] = lapse()
			end
		end
	else
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
				if recovered and recovered > 0 then outcome, ms = 5, recovered end
			elseif outcome == 5 then
				ms = recovered
			elseif outcome ~= 1 then
				act, ms = active, lapse()
			end
			local b = o + 8 * (j - 1)
			out[b + 1], out[b + 2], out[b + 3], out[b + 4] = outcome, act, set or A[a + 2] + 0, waiting
			out[b + 5], out[b + 6], out[b + 7], out[b + 8] = place, fence, g[4], ms
		end
	end
	shut()
end
return finish(out)
