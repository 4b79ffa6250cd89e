-- renew: make held slots last their ttl from now.
--
-- KEYS     S, M, Q, L of each id, as in acquire.lua; last E.
-- ARGV     header (see prelude), then per id: n grace
--          (slot ttl weight fence trust register owner limit) ...
--          trust is for how many ms the holder may still believe in the slot;
--          register is '1' to put it back whatever the store remembers.
-- Returns  the time and number (see reply); per slot 0 lost, 1 held, 2 put back, 3 revoked,
--          4 ask again (see doubt; also where it came too late to put back); and last
--          the words (see push) to the caller's own process.
--
-- A slot that is there is renewed without looking at the marker. One that is not
-- is put back while the server recovers from having lost its memory; else, as when
-- somebody else has evicted it, if its holder may still believe in it, it was not taken
-- from it, nobody waits, and there is room.
-- @prelude

local out, o = {now}, 1

local i, k = 2, 1
while A[i] do
	local n = A[i] + 0
	GRACE = A[i + 1] + 0
	if SEEN == AWAY then recovering() end
	S, M, Q, L = K[k], K[IDS + k], K[2 * IDS + k], K[3 * IDS + k]
	local slots = {}
	for j = 1, n do slots[j] = A[i + 2 + 8 * (j - 1)] end
	local scores = call('ZMSCORE', S, unpack(slots))
	local opened = false
	local most, heavy, held, h = 0, 0, {}, 0
	for j = 1, n do
		local a = i + 2 + 8 * (j - 1)
		local slot, ttl, trust, register = slots[j], A[a + 1] + 0, A[a + 4] + 0, A[a + 5] == '1'
		if scores[j] and scores[j] + 0 > now then
			held[h + 1], held[h + 2] = string.format('%.0f', now + ttl), slot
			h = h + 2
			if ttl > most then most = ttl end
			if A[a + 2] ~= '1' and ttl > heavy then heavy = ttl end
			out[o + j] = 1
		else
			if not opened then
				call('ZREM', S, '') -- see touch
				fetch(k)
				count()
				opened = true
			end
			local r = call('HGET', M, slot)
			local state, w = string.match(r or '', '^(%a) (%d+)')
			local holds = state == 'h' or state == 'g'
			w = holds and w + 0 or A[a + 2] + 0
			if holds and not scores[j] and not emptied then -- evicted by somebody else: not in S, and still in extra
				extra, active, dirty = extra - (w - 1), active - (w - 1), true
			end
			local back
			if state == 'd' then
				back = false
			elseif now > LATEST + 0 then -- whose it was may have given it back since
				back, doubt = false, true
			elseif register or trust > 0 and recovering(not scores[j] and not r) > 0 and not doubt then
				back = true
			else
				back = trust > 0 and not scores[j] and (holds or state == 'e' or not state and w == 1) and waiting == 0 and fits(w, set or A[a + 7] + 0)
			end
			if back then
				-- What is left of it goes first: a recount on the way must not find it.
				if scores[j] then -- lapsed, and still there
					for d = #dead, 1, -1 do
						if dead[d] == slot then table.remove(dead, d) end
					end
					if holds then extra, deadExtra = extra - (w - 1), deadExtra - (w - 1) end
					call('ZREM', S, slot)
				end
				if r then call('HDEL', M, slot) end
				local had = A[a + 3] + 0
				grant(slot, w, ttl, false, WAKE, A[a + 6], 'h', had > 0 and had or nil)
				out[o + j] = 2
			else
				if holds and not scores[j] then call('HDEL', M, slot) end
				out[o + j] = state == 'd' and 3 or 0
			end
			if doubt then out[o + j] = 4 end
		end
	end
	if h > 0 then
		touch(S, most)
		call('ZADD', S, 'XX', 'GT', unpack(held))
		if heavy > 0 and call('PEXPIRETIME', M) >= 0 then
			keep(M, heavy)
			mark(heavy)
		end
	end
	if opened then save() end
	o = o + n
	i = i + 2 + 8 * n
	k = k + 1
end
return reply(out)
