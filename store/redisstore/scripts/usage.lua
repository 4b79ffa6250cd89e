-- usage: how an id stands. It writes nothing.
--
-- KEYS     S, M, Q, L, E
-- ARGV     header (see prelude), the asker's limit, '1' to list the holders too
-- Returns  the server's time in ms, active, limit, 1 if that was set by hand,
--          waiting, ms until the next slot lapses (0: none is held), of the first 1,000
--          who wait how many have each class (1 to 4, see acquire), as text; then per
--          holder its slot id, ms until it lapses, and its record in M or ''.

-- @prelude

fetch(1)
count()
local out = {now, active, set or A[2] + 0, set and 1 or 0, waiting, lapse()}
local classes = {0, 0, 0, 0}
if waiting > 0 then
	for _, r in ipairs(call('HMGET', M, unpack(call('ZRANGE', Q, 0, 999)))) do
		local at = string.match(r or '', '^w %d+ %d+ %-?%d+ [^ /]+/([1-4])')
		if at then classes[at + 0] = classes[at + 0] + 1 end
	end
end
out[7] = table.concat(classes, ' ')
if A[3] == '1' then
	local members = call('ZRANGE', S, '(' .. nows, '+inf', 'BYSCORE', 'WITHSCORES')
	local o = 7
	for j = 1, #members, 2 do
		out[o + 1], out[o + 2], out[o + 3] = members[j], members[j + 1] - now, call('HGET', M, members[j]) or ''
		o = o + 3
	end
end
return reply(out)
