-- What the verbs share, but for plain.lua, which must not pay for it.
--
-- The life of a slot id: it asks, and is granted, refused, or waits in line. Who waits asks
-- again each second, and its place ends LIFE after it last did. Room is handed to the head:
-- it is a holder then, for CLAIM, and has claimed the slot when it asks or renews. A
-- holder lasts its ttl from its last renewal; then it has lapsed, or it was given back, or
-- taken from it, which leaves a tombstone.
--
-- The header, ARGV[1], is
--   sweep ('1': look for lapsed slots), shard ('1': SPUBLISH), wake (the token of
--   the caller's process), the number of the call, seen ('1': the caller has met this marker before; '2':
--   it has proof that the server's clock jumped; '3': it comes back from an outage in
--   which grants were made without the server; '4': below), and the clock echo: the server's
--   time in ms that the caller last read, and how many ms ago, or 0 0; with '2', the
--   earliest time at which the clock can have jumped, by the server's clock of now, and
--   how many ms it is behind the numbers that it gave before that; with '3', for how many
--   ms the caller was away; with '4' (as '1', but the clock is behind such numbers), what
--   the clock should say now, and how many ms they are above that; and last the latest
--   time in ms at which something may be taken, or put back: whoever asks leaves then, and
--   gives back what it was not told of.
--
-- S says all there is to say of a holder of weight 1. M is a hash, for what does not go into
-- S. Its field '' is 'extra recounted': the sum of (weight - 1) over S, and when that was
-- last recounted. Its other fields are slot ids:
--   h weight fence since wake owner   a holder of more than weight 1
--   g weight fence since wake owner   the same, granted to a waiter who has not claimed it
--   w until weight limit wake owner   a waiter; with a class it is wake/class
--   d until                           taken from its holder (a tombstone)
--   e since                           a holder that somebody else has evicted from S
-- E, the marker, says in 'm' until when ids may have an M or an L, and in 'f' which was the
-- last fence or ticket given to any id.
-- S and Q are sorted sets: slot id -> when it lapses, slot id -> ticket.
--
-- In what order a verb calls the functions below, once for each id:
--   fetch     reads what M's '' field says, and sets S, M, Q, L, extra, waiting, new
--   count     (by whoever may grant) sets active, set, dead: what is held, and what has lapsed
--   sweep     (by whoever may refuse) takes out what has lapsed, if it is a lot
--   write     before the first write to the id: takes out what has lapsed
--   grant, join, leave, advance   change holders and line; they note records and ends
--   save      writes M's '' field, the records, and how long M lives
-- and reply once, last: it tells whom it concerns, and stamps the answer. Neither fetch nor
-- count writes anything. recovering looks at the marker once a call.
local call, K, A = redis.call, KEYS, ARGV
-- @include clock
-- @include times
local nows = string.format('%.0f', now)
local FOREVER = '9007199254740991'
-- What SEEN says, see the header.
local NEW, JUMPED, AWAY, BEHIND = '0', '2', '3', '4'
local SWEEP, SHARD, WAKE, NUMBER, SEEN, ECHO, AGO, LATEST = string.match(A[1], '^(%d) (%d) (%S+) (%d+) (%d) (%d+) (%d+) (%d+)$')
local IDS = (#K - #K % 4) / 4
local GRACE = 0
local micros = time[1] * 1000000 + time[2]

local S, M, Q, L                -- the keys of the id at hand
local set                       -- its limit set by hand, or nil
local counted, raised           -- E's counter, once it was read; it must be written
local extra, recounted
local active, waiting           -- the sum of live weights; the length of the line
local new                       -- M does not exist
local known                  -- set, active and the lapsed were looked at
local emptied                   -- S is not there: it has ended before M, and what was extra in it with it
local dead, deadExtra           -- the first lapsed members of S that are still there; the extra of those
local restExtra, more           -- the extra of further ones; there are more than were looked at
local dirty                     -- the '' field must be written
local fields                    -- records to be written with it
local sKeep                     -- how long S is known to live
local mKeep                     -- how long M must live
local present                   -- slot id -> ttl: who asks in this very call claims at once
local given                     -- slot id -> fence, granted while advancing
local mine, pushes = {}, {}     -- whom to tell: in the caller's process; elsewhere
local nextLapse

local function extraOf(slots)
	local sum = 0
	for _, r in ipairs(call('HMGET', M, unpack(slots))) do
		local w = r and string.match(r, '^[hg] (%d+)')
		if w then sum = sum + w - 1 end
	end
	return sum
end

-- fetch reads what the meta of the k-th id says. Neither it nor count writes anything.
local function fetch(k)
	S, M, Q, L = K[k], K[IDS + k], K[2 * IDS + k], K[3 * IDS + k]
	local meta = call('HGET', M, '')
	new = not meta
	extra, recounted = string.match(meta or '0 0', '^(%d+) (%d+)$')
	extra, recounted = extra + 0, recounted + 0
	waiting = new and 0 or call('ZCARD', Q)
	known, emptied, set, active, nextLapse = false, false, nil, 0, nil
	dead, deadExtra, restExtra, more = {}, 0, 0, false
	dirty, fields, mKeep, sKeep, present, given = false, {''}, 0, 0, {}, {}
end

-- count counts what is held, for those who grant. Lapsed slots do not count; they are
-- looked for when they must be, since they may be weighted, and now and then to sweep
-- them.
local function count()
	if known then return end
	known = true
	local l = call('HGET', L, 'n')
	set = l and l + 0 or nil
	if extra > 0 or SWEEP == '1' then dead = call('ZRANGE', S, '-inf', nows, 'BYSCORE', 'LIMIT', '0', '1000') end
	if #dead > 0 and extra > 0 then
		deadExtra = extraOf(dead)
		for page = 1, 9 do -- a call sweeps a thousand, and looks at ten
			if #dead < 1000 then break end
			local rest = call('ZRANGE', S, '-inf', nows, 'BYSCORE', 'LIMIT', 1000 * page, 1000)
			if #rest == 0 then break end
			restExtra = restExtra + extraOf(rest)
			more = page == 9 and #rest == 1000
			if #rest < 1000 then break end
		end
	end
	active = call('ZCOUNT', S, '(' .. nows, '+inf')
	if extra > 0 and active == 0 and #dead == 0 then extra, emptied, dirty = 0, true, not new end
	active = active + extra - deadExtra - restExtra
end

-- above returns the next number of E's counter.
local function above()
	counted = counted or (call('HGET', K[#K], 'f') or 0) + 0
	counted = math.max(counted + 1, micros)
	raised = true
	return counted
end

-- atLeast has the counter not fall below a number that was given before.
local function atLeast(had)
	counted = counted or (call('HGET', K[#K], 'f') or 0) + 0
	if had > counted then counted, raised = had, true end
end

-- recovering returns for how many ms nothing may be granted or swept: the server
-- has lost its memory, and holders must come forward first. The rules are in
-- docs/guarantees.md; the marker E remembers whose memory this is.
--
-- doubt says that the call came at a moment that its caller's clock does not explain:
-- the server's clock jumped, or the call lay about somewhere. Then nothing is granted
-- or swept either, and the caller asks again: from this answer it knows which it was.
local recovered
local doubt = false
local met = false -- the marker was found, or made
local function recovering(lossProven)
	if GRACE == 0 then return 0 end
	if recovered and not lossProven then return recovered end
	local E = K[#K]
	local madeBy, madeRun, ends, seen, epoch, lost, pausedAt = unpack(call('HMGET', E, 'rid', 'run', 'grace', 'seen', 'ep', 'lost', 'paused'))
	seen, lost, pausedAt = (seen or 0) + 0, lost or 0, pausedAt or 0
	local left = (ends or 0) - now
	if left < 0 then left = 0 elseif left > GRACE then left = GRACE end -- the clock went back
	recovered, met = left, madeBy and true
	local info = redis.pcall('INFO', 'replication')
	if type(info) ~= 'string' then -- no right to ask: only proof counts
		info = ''
	end
	local rid = string.match(info, 'master_replid:(%x+)') or madeBy or '-' -- a user with less rights than who made the marker accuses nobody
	local loss, stamp, paused = false, false, pausedAt
	if not madeBy then
		loss, stamp = SEEN ~= NEW or lossProven, true
	elseif madeBy ~= rid then
		local server = redis.pcall('INFO', 'server')
		if type(server) ~= 'string' then server = '' end
		local run = string.match(server, 'run_id:(%x+)')
		local first = string.find(string.match(info, 'master_replid2:(%x+)') or '1', '[^0]') == nil
		-- The latest that this run can have begun: both ends of the uptime are cut to
		-- seconds, of a clock that INFO reads late.
		local started = now - 1000 * ((string.match(server, 'uptime_in_seconds:(%d+)') or 0) - 2)
		-- Benign: the same run got another replication id; or the slot was moved here,
		-- from a node that this one has never replaced, while this one was running.
		loss = not (first and (madeRun == run or started < seen))
		stamp = true
	end
	if left == 0 and not loss then
		if SEEN == JUMPED then
			-- Unless a loss was noticed since: then somebody else was quicker.
			if lost - ECHO < 0 then loss, stamp = true, true end
		elseif SEEN == AWAY then
			-- The first to come back. A pause that began since the caller went away is its own.
			if pausedAt - now + ECHO < 0 then recovered, stamp, paused = PAUSE, true, now end
		elseif ECHO ~= '0' then
			local jump = now - ECHO - (SEEN == BEHIND and 0 or AGO)
			if jump > 400 or jump < -400 then
				recovered, doubt = 1, true
				return recovered
			end
		end
	end
	-- Fences and tickets are counted in E, and are not below the clock. They must not fall when
	-- that goes back and the counter is lost, or older than what was given. Where it was is
	-- known from what the callers have read, else from the last stamp.
	local begin = 0
	if SEEN == BEHIND then
		begin = ECHO + AGO
	elseif SEEN == JUMPED then
		if AGO ~= '0' then begin = now + AGO end
	elseif SEEN ~= AWAY and ECHO ~= '0' and (loss or not madeBy) then
		begin = ECHO + AGO + 2
	end
	if begin == 0 and seen > now then begin = seen + 1001 end
	if begin > now then atLeast(begin * 1000) end
	local age = now - seen
	if stamp or age > 1000 or age < 0 then
		local run = madeRun or '-'
		if stamp then
			local server = redis.pcall('INFO', 'server')
			run = type(server) == 'string' and string.match(server, 'run_id:(%x+)') or '-'
		end
		if loss then recovered, lost = GRACE, now end
		if loss then call('HSET', E, 'longest', GRACE, 'said', now) end -- see grace.lua
		-- Whose meta is there nobody knows, if only the marker was lost.
		if loss and not madeBy then call('HSET', E, 'm', FOREVER) end
		call('HSET', E, 'rid', rid, 'run', run, 'grace', now + recovered, 'seen', now, 'ep', (epoch or 0) + (loss and 1 or 0), 'lost', lost, 'paused', paused)
		met = true
	end
	return recovered
end

-- extend has a key end in ms; with slack, so that it need not be moved each time.
local function extend(key, ms) call('PEXPIREAT', key, string.format('%.0f', now + ms * 1.125)) end

-- keep sees to it that a key lives for ms.
local function keep(key, ms)
	if call('PEXPIRETIME', key) < now + ms then extend(key, ms) end
end

-- touch is keep, and a write in any case. A server that is full refuses the first write of a
-- script if it may need memory, as ZADD and HSET may; after one that needs none it takes
-- them. So what keeps and what gives back begins with such a one.
local function touch(key, ms)
	local ends = call('PEXPIRETIME', key)
	if ends < now + ms then extend(key, ms) else call('PEXPIREAT', key, string.format('%.0f', ends), 'GT') end
end

local function keepM(ms)
	dirty = true
	if ms > mKeep then mKeep = ms end
end

-- mark has E say that ids may have meta for ms. It says more than that, so that it need not
-- be written each time.
local marked
local function mark(ms)
	marked = marked or (call('HGET', K[#K], 'm') or 0) + 0
	if marked < now + ms * 1.125 then
		marked = now + ms * 2 + 5000
		call('HSET', K[#K], 'm', string.format('%.0f', marked))
	end
end

-- flush writes the '' field, and the records of grants with it.
local function flush()
	fields[2] = string.format('%.0f %.0f', extra, recounted)
	call('HSET', M, unpack(fields))
	fields = {''}
	dirty = true -- its end is still to be moved
end

-- record has a slot's record written with the next flush.
local function record(slot, text)
	local j = #fields
	if j == 1 then j = 2 end -- 2 is the value of ''
	fields[2] = false
	fields[j + 1], fields[j + 2] = slot, text
end

-- recount mends extra, which is wrong if somebody else has evicted weighted slots from
-- S: a peer that knows nothing of M, or the end of the key. It looks at all of M, so at
-- most once a second, and where that is long, for a hundredth of the time. Who was evicted
-- so is marked, and may come back for as long as five minutes.
local function recount(at_once)
	if new or not at_once and (now - recounted < 1000 or now - recounted < call('HLEN', M) / 5) then return end
	flush()
	local sum, all = 0, call('HGETALL', M)
	for j = 1, #all, 2 do
		local state, number = string.match(all[j + 1], '^([hge]) (%d+)')
		if state == 'e' then
			if now - number > 300000 then call('HDEL', M, all[j]) end
		elseif state then
			if call('ZSCORE', S, all[j]) then
				sum = sum + number - 1
			elseif recovering() == 0 then
				call('HSET', M, all[j], string.format('e %.0f', now))
			else
				sum = sum + number - 1
			end
		end
	end
	active = active - (extra - sum)
	extra, recounted, dirty = sum, now, true
end

-- write comes before the first write to an id: what has lapsed goes first.
local function write()
	if #dead == 0 then
		-- S is empty: whose record is still in M?
		if not new and (emptied or active == 0 and now - recounted > 10000 and call('HLEN', M) > waiting + 1) then
			recount(emptied)
			emptied = false
		end
	elseif recovering() == 0 then
		call('ZREM', S, unpack(dead))
		if not new then
			call('HDEL', M, unpack(dead))
			extra, deadExtra = extra - deadExtra, 0
			dirty = true
		end
		dead = {}
	end
end

-- sweep takes out what has lapsed, though nothing else may be written, where that is more
-- than a call likes to look at: a refusal counts it too, and so would each that follows.
local function sweep()
	if #dead == 1000 then write() end
end

-- push tells the process with that token a word: a slot id; or, of a grant, when its
-- waiter last asked (ms), the fence, the limit, and the slot id.
local function push(wake, word, shared)
	if wake == WAKE then
		mine[#mine + 1] = word
	elseif SHARD == '1' and shared then
		pushes[#pushes + 1] = {'SPUBLISH', 'gotsem:{' .. string.match(M, '^gotsem:{(.-)}') .. '}:wake:' .. wake, word}
	else
		pushes[#pushes + 1] = {'PUBLISH', 'gotsem:wake:' .. wake, word}
	end
end

local function fits(weight, limit)
	if active + weight <= limit then return true end
	if extra == 0 then return false end
	recount()
	return active + weight <= limit
end

local function fenceOf(r) return string.match(r, '^%a %d+ (%d+)') + 0 end

-- grant makes slot a holder, and returns its fence: the next one, or one that it had
-- before.
local function grant(slot, weight, ttl, bare, wake, owner, state, had)
	write()
	call('ZADD', S, string.format('%.0f', now + ttl), slot)
	if active == 0 then -- a key that only lapsed slots keep may be shortened
		extend(S, ttl)
		sKeep = ttl
	elseif ttl > sKeep then
		keep(S, ttl)
		sKeep = ttl
	end
	active = active + weight
	if bare and weight == 1 then return 0 end
	extra = extra + weight - 1
	if had then atLeast(had) end
	local f = had or above()
	if weight == 1 then return f end -- its member of S is all there is to remember
	record(slot, string.format('%s %d %.0f %.0f %s %s', state, weight, f, now, wake, owner))
	keepM(ttl)
	return f
end

local waits -- how the record of who asks now begins
local function waiter(weight, limit, owner, flags)
	waits = waits or string.format('w %.0f ', now + LIFE)
	local class = flags + 0 > 3 and string.format('/%d', flags / 4) or ''
	return waits .. weight .. ' ' .. limit .. ' ' .. WAKE .. class .. ' ' .. owner
end

-- join has a slot stand in line: where it stood, or, with a ticket of zero and less, as if
-- it had come so many µs earlier.
local function join(slot, weight, limit, ticket0, owner, flags)
	write()
	if ticket0 <= 0 then
		ticket0 = math.max(1, above() + ticket0)
	else
		atLeast(ticket0)
	end
	call('ZADD', Q, string.format('%.0f', ticket0), slot)
	call('HSET', M, slot, waiter(weight, limit, owner, flags))
	waiting = waiting + 1
	keep(Q, LIFE)
	keepM(LIFE)
	return ticket0
end

local function leave(slot)
	call('ZREM', Q, slot)
	call('HDEL', M, slot)
	waiting = waiting - 1
	dirty = true
end

-- advance hands room to the head of the line for as long as that is possible, at
-- most 64 times a call.
local function advance()
	if waiting == 0 then return end
	count()
	for _ = 1, 64 do
		local head = call('ZRANGE', Q, '0', '0')[1]
		if not head then
			waiting = 0
			return
		end
		local ends, weight, limit, wake, owner = string.match(call('HGET', M, head) or '', '^w (%d+) (%d+) (-?%d+) (%S+) (.*)$')
		if not ends or ends + 0 <= now then
			if recovering() > 0 then return end
			write()
			leave(head)
		else
			if ends - now > LIFE + 100 then -- the clock went back: it would outlive its process
				call('HSET', M, head, string.format('w %.0f %s %s %s %s', now + LIFE, weight, limit, wake, owner))
			end
			weight, limit = weight + 0, set or limit + 0
			wake = string.match(wake, '^[^/]+')
			if limit > 0 and weight > limit then -- the limit was lowered under it
				write()
				leave(head)
				push(wake, head, true)
			elseif not fits(weight, limit) or recovering() > 0 then
				return
			else
				write()
				leave(head)
				local ttl, claim = present[head], CLAIM
				-- A grant does not make the dead live longer than their place in line, but by
				-- what being woken may take. Who lives has asked within the last second.
				if ends - now < CLAIM then claim = math.max(ends - now, LEAST) end
				given[head] = grant(head, weight, ttl or claim, false, wake, owner, ttl and 'h' or 'g')
				if not ttl then push(wake, string.format('%.0f %.0f %.0f %s', ends - LIFE, given[head], limit, head), true) end
			end
		end
	end
end

-- lapse returns in how many ms the next slot lapses; 0: none is held.
local function lapse()
	if not nextLapse then
		local first = call('ZRANGE', S, '(' .. nows, '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
		nextLapse = first[2] and first[2] - now or 0
		-- More lapsed slots than one call looks at: asking again at once is worth it.
		if more then nextLapse = 1 end
	end
	return nextLapse
end

-- save writes what the id's meta needs, or drops it when nothing is left.
local function save(idle)
	if (idle or dirty) and waiting == 0 and extra == 0 and #fields == 1 and not emptied and call('HLEN', M) <= (new and 0 or 1) then
		if not new then call('DEL', M) end
		return
	end
	if not dirty then return end
	if emptied then -- an extra of 0 must not stand beside records of what has ended
		emptied = false
		recount(true)
	end
	flush()
	if mKeep == 0 then mKeep = 1000 end
	mark(mKeep)
	if new then
		extend(M, mKeep)
	else
		keep(M, mKeep)
	end
end

-- reply tells whom it concerns. Last, and without failing: a missing right to
-- publish must not look like a call that failed. A reply begins with the time in ms,
-- times 1024, plus the number of the call, by which its caller knows it from another
-- call's; it is negative if the caller has not met the marker by this call. It ends with
-- the words to the caller's own process.
local function reply(out)
	-- Whoever has never met it looks whether it is there, also when refused: a process
	-- that only ever waited must not take a server that lost everything for a new one.
	if not met and SEEN == NEW then met = call('HGET', K[#K], 'rid') end
	if raised then call('HSET', K[#K], 'f', string.format('%.0f', counted)) end
	out[1] = now * 1024 + NUMBER
	if not met then out[1] = -out[1] end
	for _, p in ipairs(pushes) do redis.pcall(unpack(p)) end
	for _, word in ipairs(mine) do out[#out + 1] = word end
	return out
end
