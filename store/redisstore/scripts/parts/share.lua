-- A queue below zero is the share of lim that who does not wait may take, in thousandths.
if queue < 0 and lim > 0 then lim = math.max(1, math.floor(lim * -queue / 1000)) end
