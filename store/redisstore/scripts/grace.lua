-- grace: say how long a grace this process needs, and learn the longest of those who use
-- the prefix. It is kept in the marker, if there is one, until it has not been said for as
-- long as it is: then nothing is held any more that needs it.
--
-- KEYS     E
-- ARGV     grace in ms
-- Returns  the longest, in ms
local call = redis.call
local e = call('HMGET', KEYS[1], 'rid', 'longest', 'said')
local mine = ARGV[1] + 0
if not e[1] then return mine end
-- @include clock
local longest, ago = (e[2] or 0) + 0, now - (e[3] or 0)
if mine < longest and ago >= 0 and ago < longest then return longest end
call('HSET', KEYS[1], 'longest', ARGV[1], 'said', string.format('%.0f', now))
return mine
