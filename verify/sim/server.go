package sim

// server is a Redis with one id in it: what the scripts see and do. Times are
// milliseconds of its own clock.
type server struct {
	w      *world
	name   string
	offset int64 // its clock, against the world's
	up     bool
	writes bool // it takes writes
	began  int64

	rid, run string
	replaced bool // master_replid2 is set: it took over from another
	data     data
}

// data is what is replicated and saved.
type data struct {
	slots  map[int]int64 // S: slot -> when it lapses
	holds  map[int]bool  // M: slot -> there is a record
	marker *marker       // E
}

type marker struct {
	rid, run    string
	grace, seen int64
	lost        int64 // when a loss was last noticed
}

func newData() data { return data{slots: map[int]int64{}, holds: map[int]bool{}} }

func (d data) clone() data {
	c := newData()
	for k, v := range d.slots {
		c.slots[k] = v
	}
	for k := range d.holds {
		c.holds[k] = true
	}
	if d.marker != nil {
		m := *d.marker
		c.marker = &m
	}
	return c
}

func (s *server) now() int64 { return s.w.now + s.offset }

// request is what travels to a server.
type request struct {
	slot  int
	trust int64 // renew: ms
	seen  byte  // as in the header of the scripts
	echo  int64
	ago   int64
}

type kind uint8

const (
	failed kind = iota // an error, or no answer
	again              // in doubt: the second question says which it was
	full
	granted
	recovering
	lost
	held
	putBack
	freed
)

// reply is what travels back.
type reply struct {
	kind kind
	now  int64
	met  bool // the call looked at the marker
}

// call is one script call: the marker is looked at once at most.
type call struct {
	*server
	request
	at    int64
	left  int64 // -1: not looked yet
	doubt bool  // the clocks do not agree: it may be the server's, or the call lay about
}

func (s *server) call(r request) *call { return &call{server: s, request: r, at: s.now(), left: -1} }

func (c *call) answer(k kind) reply { return reply{kind: k, now: c.at, met: c.left >= 0} }

// recovering is the function of that name in the prelude.
func (c *call) recovering(lossProven bool) int64 {
	p := c.w.p
	if p.Mutation&NoStamp != 0 {
		c.left = 0
		return 0
	}
	if c.left >= 0 && !lossProven {
		return c.left
	}
	m := c.data.marker
	grace := p.Grace.Milliseconds()
	c.left = 0
	if m != nil {
		c.left = min(max(m.grace-c.at, 0), grace)
	}
	loss, stamp := false, false
	switch {
	case m == nil:
		loss, stamp = c.seen != '0' || lossProven, true
	case m.rid != c.rid:
		// Whole seconds at both ends: the run began within a second of that.
		uptime := floorDiv(c.at, 1000) - floorDiv(c.began, 1000)
		began := c.at - 1000*(uptime-2)
		if p.Mutation&YoungestUptime != 0 {
			began = c.at - 1000*(uptime+1)
		}
		loss = c.replaced || m.run != c.run && began >= m.seen
		stamp = true
	}
	if c.left == 0 && !loss && p.Mutation&NoEcho == 0 {
		if c.seen == '2' {
			if m == nil || m.lost < c.echo {
				loss, stamp = true, true
			}
		} else if c.echo != 0 {
			if jump := c.at - c.echo - c.ago; jump > jumpMax || jump < -jumpMax {
				c.left, c.doubt = 1, true
				return c.left
			}
		}
	}
	if stamp || c.at-m.seen > 1000 || c.at < m.seen {
		if loss && p.Mutation&NoGrace == 0 {
			c.left = grace
		}
		if loss {
			c.w.tell("%s: loss noticed, grace %d ms", c.name, c.left)
		}
		fresh := &marker{rid: c.rid, run: c.run, grace: c.at + c.left, seen: c.at}
		if loss {
			fresh.lost = c.at
		} else if m != nil {
			fresh.lost = m.lost
		}
		c.data.marker = fresh
	}
	return c.left
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func (c *call) live() (n int) {
	for _, until := range c.data.slots {
		if until > c.at {
			n++
		}
	}
	return n
}

// sweep is write in the prelude.
func (c *call) sweep() {
	if c.recovering(false) > 0 && c.w.p.Mutation&PurgeInGrace == 0 {
		return
	}
	for slot, until := range c.data.slots {
		if until <= c.at {
			if l := c.w.all[slot]; l != nil && l.believed(c.w.now) && c.writes && c.w.p.Fault != Split {
				c.w.result.Forgot++
				c.w.tell("slot %d is forgotten, its holder believes in it for %d ms more", slot, l.trust-c.w.now)
			}
			delete(c.data.slots, slot)
			delete(c.data.holds, slot)
		}
	}
}

func (c *call) acquire() reply {
	if until, ok := c.data.slots[c.slot]; ok && c.data.holds[c.slot] && (until > c.at || c.recovering(false) > 0 && !c.doubt) {
		c.data.slots[c.slot] = max(until, c.at+c.w.ttl)
		return c.answer(granted)
	}
	room := c.live() < c.w.p.Limit
	if c.w.p.Mutation&LimitOff != 0 {
		room = c.live() <= c.w.p.Limit
	}
	switch {
	case !room:
		return c.answer(full)
	case c.recovering(false) > 0:
		if c.doubt {
			return c.answer(again)
		}
		return c.answer(recovering)
	}
	c.sweep()
	c.data.slots[c.slot] = c.at + c.w.ttl
	c.data.holds[c.slot] = true
	return c.answer(granted)
}

func (c *call) renew() reply {
	until, there := c.data.slots[c.slot]
	if there && until > c.at {
		c.data.slots[c.slot] = max(until, c.at+c.w.ttl)
		return c.answer(held)
	}
	if c.w.p.Mutation&PurgeInGrace != 0 {
		c.sweep()
		there = false
	}
	if c.trust > 0 && c.recovering(!there && !c.data.holds[c.slot]) > 0 {
		if c.doubt && c.w.p.Mutation&PutBackInDoubt == 0 {
			return c.answer(again)
		}
		if l := c.w.all[c.slot]; c.doubt && (l == nil || !l.believed(c.w.now)) {
			c.w.result.Ghosts++
		}
		c.data.slots[c.slot] = c.at + c.w.ttl
		c.data.holds[c.slot] = true
		return c.answer(putBack)
	}
	return c.answer(lost)
}

func (c *call) release() reply {
	delete(c.data.slots, c.slot)
	delete(c.data.holds, c.slot)
	return reply{kind: freed, now: c.at}
}
