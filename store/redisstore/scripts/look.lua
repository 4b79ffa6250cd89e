-- look: what the marker says, and nothing else.
--
-- KEYS     E
-- ARGV     header (see prelude), grace
-- Returns  the time and number (see reply); for how many ms no grants are made; 1 if the
--          caller is to ask again (see doubt), else 0

-- @prelude

GRACE = A[2] + 0
local left = recovering()
return reply({now, left, doubt and 1 or 0})
