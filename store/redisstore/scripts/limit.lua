-- limit: set the limit of an id for everybody, or take it off again; and hand on
-- the room that this makes.
--
-- KEYS     S, M, Q, L, E
-- ARGV     header (see prelude), grace, limit ('': take it off)
-- Returns  the server's time in ms; the version of the limit; and last the words (see
--          push) to the caller's own process.

-- @prelude

GRACE = A[2] + 0
local version = 0
if A[3] == '' then
	call('DEL', K[4])
else
	call('ZREM', K[1], '') -- see touch
	mark(1e15)
	version = call('HINCRBY', K[4], 'v', 1)
	call('HSET', K[4], 'n', A[3])
end
fetch(1)
count()
advance()
save(true)
return reply({now, version})
