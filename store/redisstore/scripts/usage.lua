-- usage: how an id stands. It writes nothing.
--
-- KEYS     S, M, Q, L, E
-- ARGV     header (see prelude), the asker's limit
-- Returns  the server's time in ms, active, limit, 1 if that was set by hand,
--          waiting, ms until the next slot lapses (0: none is held), of the first 1,000
--          who wait how many have each class (1 to 4, see acquire), as text, and the slot
--          id of the first in line, or ''.

-- @prelude

fetch(1)
count()
local classes, head = {0, 0, 0, 0}, ''
if waiting > 0 then
	local line = call('ZRANGE', Q, 0, 999)
	head = line[1]
	for _, r in ipairs(call('HMGET', M, unpack(line))) do
		local at = string.match(r or '', '^w %d+ %d+ %-?%d+ [^ /]+/([1-4])')
		if at then classes[at + 0] = classes[at + 0] + 1 end
	end
end
return reply({now, active, set or A[2] + 0, set and 1 or 0, waiting, lapse(), table.concat(classes, ' '), head})
