-- state: what the marker says of the server that keeps an id. It writes nothing.
--
-- KEYS     S, M, Q, L, E
-- ARGV     header (see prelude)
-- Returns  the server's time in ms, how often its memory was lost, ms since that was last
--          noticed, and for how many ms nothing is granted.

-- @prelude

local m = call('HMGET', K[5], 'ep', 'lost', 'grace')
local lost = (m[2] or 0) + 0
return reply({now, (m[1] or 0) + 0, lost > 0 and math.max(now - lost, 1) or 0, math.max((m[3] or 0) - now, 0)})
