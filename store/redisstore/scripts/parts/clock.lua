local time = call('TIME')
local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
