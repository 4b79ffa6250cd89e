-- usage: how ids stand. It writes nothing.
--
-- KEYS     S of each id, then M of each, Q of each, L of each; last E
-- ARGV     header (see prelude), the asker's limit
-- Returns  the server's time in ms; of each id then active, limit, 1 if that was set by hand,
--          waiting, ms until the next slot lapses (0: none is held), of the first 1,000
--          who wait how many have each class (1 to 4, see acquire), as text, and the slot
--          id of the first in line, or ''.

-- @prelude

local out, o = {now}, 1
for k = 1, IDS do
	fetch(k)
	count()
	local classes, head = '0 0 0 0', ''
	if waiting > 0 then
		local line, n = call('ZRANGE', Q, 0, 999), {0, 0, 0, 0}
		head = line[1]
		for _, r in ipairs(call('HMGET', M, unpack(line))) do
			local at = string.match(r or '', '^w %d+ %d+ %-?%d+ [^ /]+/([1-4])')
			if at then n[at + 0] = n[at + 0] + 1 end
		end
		classes = table.concat(n, ' ')
	end
	out[o + 1], out[o + 2], out[o + 3], out[o + 4] = active, set or A[2] + 0, set and 1 or 0, waiting
	out[o + 5], out[o + 6], out[o + 7] = lapse(), classes, head
	o = o + 7
end
return reply(out)
