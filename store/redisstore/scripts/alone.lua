-- alone: keep, give back or take one slot of weight 1 by one key alone, while the cluster
-- slot of the id is being moved to another node. Such a slot takes no command that names
-- several keys if some of them do not exist; what names one goes where that is.
--
-- KEYS     S (holders), or with 'kept' and 'gone' M (meta), or with 'mark' E (the marker)
-- ARGV     what is to be done, and
--          keep   slot ttl             make it last, if it is there
--          give   slot                 take it out
--          take   slot ttl limit fence take a slot: its fence must be above that
--          kept   ttl                  M lives so long, if it is there
--          gone   slot                 forget its record, and what it weighed
--          mark   ttl fence            by E: meta may be there for so long, and fences are above
-- Returns  keep, kept: 1 if it was there, else 0. give: 1 if it was there and live. gone: 1 if
--          it waited. take: 1 if it is granted, else 0; the active count; its fence (0: it is below
--          the clock's, nothing was done), and ms until the next slot lapses.
local call, K, A = redis.call, KEYS[1], ARGV
-- @include clock
local what, slot = A[1], A[2]
local function ends(ms) return string.format('%.0f', now + ms) end
if what == 'kept' then
	return call('PEXPIREAT', K, ends(slot * 1.125), 'GT')
elseif what == 'mark' then
	local e = call('HMGET', K, 'm', 'f')
	local m, f = math.max((e[1] or 0) + 0, now + slot * 2), math.max((e[2] or 0) + 0, A[3] + 0)
	return call('HSET', K, 'm', string.format('%.0f', m), 'f', string.format('%.0f', f))
elseif what == 'gone' then
	local r = call('HMGET', K, '', slot)
	if not r[2] then return 0 end
	local state, weight = string.match(r[2], '^(%a) (%d+)')
	if state == 'd' then return 0 end
	call('HDEL', K, slot)
	if (state == 'h' or state == 'g') and weight + 0 > 1 and r[1] then
		local extra, recounted = string.match(r[1], '^(%d+) (%d+)$')
		call('HSET', K, '', string.format('%.0f %s', math.max(extra - weight + 1, 0), recounted))
	end
	if r[1] and call('HLEN', K) == 1 then call('PEXPIREAT', K, ends(1000)) end
	return state == 'w' and 1 or 0
end
local score = call('ZSCORE', K, slot)
local live = score and score + 0 > now
if what == 'give' then
	call('ZREM', K, slot)
	return live and 1 or 0
elseif what == 'keep' then
	if not live then return 0 end
	if call('PEXPIRETIME', K) < now + A[3] then call('PEXPIREAT', K, ends(A[3] * 1.125)) else call('ZREM', K, '') end
	call('ZADD', K, 'XX', 'GT', ends(A[3]), slot)
	return 1
end
local active = call('ZCOUNT', K, '(' .. ends(0), '+inf')
local fence = time[1] * 1000000 + time[2]
if not live then
	if active >= A[4] + 0 then
		local first = call('ZRANGE', K, '(' .. ends(0), '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
		return {0, active, 1, first[2] and first[2] - now or 0}
	end
	if fence <= A[5] + 0 then return {0, active, 0, 0} end
	call('ZADD', K, ends(A[3]), slot)
	if call('PEXPIRETIME', K) < now + A[3] then call('PEXPIREAT', K, ends(A[3] * 1.125)) end
	active = active + 1
end
return {1, active, fence, 0}
