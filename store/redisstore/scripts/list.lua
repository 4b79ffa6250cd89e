-- list: a page of those who hold, or of those who wait. It writes nothing.
--
-- KEYS     S, M, Q, L, E
-- ARGV     header (see prelude), 'held' or 'line', how many at most (1 to 1000), and the
--          score and the slot id of the last one of the page before, or '' and ''
-- Returns  the server's time in ms; 1 if there are more; and then of each its slot id, its
--          score (when it lapses; its ticket), and its record in M or ''.

-- @prelude

local key, n, score, slot = S, A[3] + 0, A[4], A[5]
fetch(1)
local from = 0
if A[2] == 'line' then
	key = Q
else
	key = S
	from = call('ZCOUNT', S, '-inf', nows)
end
if score ~= '' then
	-- Who has not moved since is known by its rank. Else the page begins with the first of its
	-- score: rather one twice than one never.
	local at = call('ZSCORE', key, slot)
	if at and at + 0 == score + 0 then
		from = math.max(from, call('ZRANK', key, slot) + 1)
	else
		from = math.max(from, call('ZCOUNT', key, '-inf', '(' .. score))
	end
end
local page = call('ZRANGE', key, from, from + n - 1, 'WITHSCORES')
local out = {now, call('ZCARD', key) > from + n and 1 or 0}
if #page > 0 then
	local slots = {}
	for j = 1, #page, 2 do slots[#slots + 1] = page[j] end
	local records = new and {} or call('HMGET', M, unpack(slots))
	for j, s in ipairs(slots) do
		out[3 * j], out[3 * j + 1], out[3 * j + 2] = s, page[2 * j], records[j] or ''
	end
end
return reply(out)
