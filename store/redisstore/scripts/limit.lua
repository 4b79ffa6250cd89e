-- limit: set the limit of an id for everybody, or take it off again, or tell it; and hand on
-- the room that this makes.
--
-- KEYS     S, M, Q, L, E
-- ARGV     header (see prelude), grace, 'set', 'off' or 'look', limit, for how many ms
--          (0: without an end), by whom, and the version that is to be changed ('': any; 0:
--          that nothing is set)
-- Returns  the server's time in ms; 0 if another version is set, and nothing was changed;
--          of what is set then limit, version (0: nothing is), ms since it was set, ms until
--          it ends (0: never), by whom; and last the words (see push) to the caller's own
--          process.

-- @prelude

GRACE = A[2] + 0
local what, limit, lasts, by, expected = A[3], A[4], A[5] + 0, A[6], A[7]
local l = call('HMGET', K[4], 'n', 'v', 'at', 'until', 'by')
local n, version, at, ends, who = l[1], l[1] and l[2] or '0', l[3] or now, l[4] or 0, l[5] or ''
local done = expected == '' or expected == version
if done and what == 'off' then
	call('DEL', K[4])
	n, version, at, ends, who = nil, '0', now, 0, ''
elseif done and what == 'set' then
	call('ZREM', K[1], '') -- see touch
	mark(lasts > 0 and lasts or 1e15)
	n, version, at, ends, who = limit, string.format('%.0f', above()), now, lasts > 0 and now + lasts or 0, by
	call('DEL', K[4]) -- its end too
	call('HSET', K[4], 'n', n, 'v', version, 'at', nows, 'until', string.format('%.0f', ends), 'by', who)
	if lasts > 0 then call('PEXPIREAT', K[4], string.format('%.0f', ends)) end -- what ends a pause, whoever set it
end
if done and what ~= 'look' then
	fetch(1)
	count()
	advance()
	save(true)
end
return reply({now, done and 1 or 0, (n or 0) + 0, version + 0, math.max(0, now - at), ends + 0 > 0 and math.max(1, ends - now) or 0, who})
