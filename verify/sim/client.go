package sim

const (
	margin  = 50  // ms
	timeout = 250 // ms, StoreTimeout
	jumpMax = 400 // ms
)

// client is a process: it acquires, holds, renews and releases.
type client struct {
	w      *world
	name   int
	server *server // whom it takes for the primary
	cut    bool    // nothing gets through
	dead   bool
	halted bool
	inbox  []func() // what came while it was halted
	leases map[int]*lease
	asking int

	met            bool // it has seen a stamp
	echo           int64
	sent, received int64
	jumped         bool
	jump           int64 // the earliest that it can have been, by the server's new clock
}

// lease is one that a client holds.
type lease struct {
	client *client
	slot   int
	trust  int64
	ends   int64 // when it wants to release it
	over   bool
}

// believed reports whether its holder may act on it. Being halted changes nothing.
func (l *lease) believed(now int64) bool { return !l.over && !l.client.dead && now < l.trust }

// when has the client do something at a time: later, if it is halted then.
func (c *client) when(at int64, do func()) {
	c.w.at(at, func() {
		switch {
		case c.dead:
		case c.halted:
			c.inbox = append(c.inbox, do)
		default:
			do()
		}
	})
}

func (c *client) resume() {
	c.halted = false
	inbox := c.inbox
	c.inbox = nil
	// Timers and answers are looked at in any order.
	c.w.r.Shuffle(len(inbox), func(i, j int) { inbox[i], inbox[j] = inbox[j], inbox[i] })
	for _, do := range inbox {
		if !c.dead {
			do()
		}
	}
}

// ask sends a request to the server and has the answer looked at, or a failure
// after the time-out. Exactly once.
func (c *client) ask(r request, script func(*call) reply, then func(sent int64, a reply)) {
	w, sent := c.w, c.w.now
	switch {
	case c.jumped:
		r.seen = '2'
	case c.met:
		r.seen = '1'
	default:
		r.seen = '0'
	}
	if c.jumped {
		r.echo = c.jump
	} else {
		r.echo, r.ago = c.echo, sent-c.sent
	}
	answered := false
	once := func(a reply) {
		if !answered {
			answered = true
			if a.kind != failed {
				c.heard(sent, a, r.seen == '2')
			}
			then(sent, a)
		}
	}
	c.when(sent+timeout, func() { once(reply{}) })
	to := c.server
	there, back, arrives := w.network()
	if !arrives || c.cut {
		return
	}
	deliver := func() {
		if !to.up {
			return
		}
		if !to.writes {
			c.when(w.now+back, func() { once(reply{}) })
			return
		}
		a := script(to.call(r))
		w.wrote(to)
		if !c.cut && w.r.IntN(200) > 0 { // else the answer is lost
			c.when(w.now+back, func() { once(a) })
		}
	}
	w.at(sent+there, deliver)
}

// heard is what redisstore's clocks do.
func (c *client) heard(sent int64, a reply, told bool) {
	c.met = c.met || a.met
	if a.now == 0 {
		return
	}
	now := c.w.now
	if c.echo == 0 {
		c.echo, c.sent, c.received = a.now, sent, now
		return
	}
	step := a.now - c.echo
	most, least := now-c.sent, sent-c.received
	switch {
	case c.jumped:
		c.jumped = c.w.p.Mutation&DropProof == 0 && !(told && a.met)
	case sent < c.sent:
		return
	case step > most+jumpMax || step < least-jumpMax:
		c.jumped, c.jump = true, a.now-most
	}
	c.echo, c.sent, c.received = a.now, sent, now
}

// want acquires, and comes back for more.
func (c *client) want() {
	w := c.w
	again := func(in int64) { c.when(w.now+1+in, c.want) }
	if len(c.leases)+c.asking >= w.perClient || w.now > w.ends {
		again(200 + w.r.Int64N(400))
		return
	}
	slot := w.nextSlot()
	c.asking++
	c.ask(request{slot: slot}, (*call).acquire, func(sent int64, a reply) {
		c.asking--
		again(20 + w.r.Int64N(300))
		if a.kind == failed {
			c.giveBack(slot, 2)
			return
		}
		if a.kind != granted {
			return
		}
		l := &lease{client: c, slot: slot, trust: c.trustFrom(sent), ends: w.now + w.holdFor()}
		if w.now >= l.trust {
			c.giveBack(slot, 1)
			return
		}
		w.result.Granted++
		w.grantedAt(slot)
		c.leases[slot] = l
		w.all[slot] = l
		w.check()
		c.keep(l, w.now+w.hb-w.r.Int64N(w.hb/10+1))
		c.when(l.ends, func() { c.release(l) })
		c.watch(l)
	})
}

func (c *client) trustFrom(sent int64) int64 {
	if c.w.p.Mutation&TrustReceipt != 0 {
		return c.w.now + c.w.ttl - margin
	}
	return sent + c.w.ttl - margin
}

// watch ends a lease when its trust is over.
func (c *client) watch(l *lease) {
	trust := l.trust
	c.when(trust, func() {
		if !l.over && l.trust == trust {
			c.end(l, "its time is over")
			c.giveBack(l.slot, 1)
		}
	})
}

func (c *client) end(l *lease, why string) {
	l.over = true
	delete(c.leases, l.slot)
	c.w.tell("client %d: slot %d ends: %s", c.name, l.slot, why)
}

// keep renews a lease.
func (c *client) keep(l *lease, at int64) {
	w := c.w
	c.when(at, func() {
		if l.over {
			return
		}
		had := l.trust
		c.ask(request{slot: l.slot, trust: l.trust - w.now}, (*call).renew, func(sent int64, a reply) {
			if l.over {
				return
			}
			switch a.kind {
			case failed, again:
				c.keep(l, w.now+w.hb/10)
			case lost:
				if l.believed(w.now) {
					w.result.ToldLost++
				}
				c.end(l, "told lost")
				c.giveBack(l.slot, 1)
			default:
				if a.kind == putBack {
					w.result.PutBack++
					if w.now >= had {
						c.end(l, "put back too late")
						c.giveBack(l.slot, 1)
						return
					}
				}
				l.trust = c.trustFrom(sent)
				w.check()
				c.watch(l)
				c.keep(l, w.now+w.hb-w.r.Int64N(w.hb/10+1))
			}
		})
	})
}

func (c *client) release(l *lease) {
	if l.over {
		return
	}
	c.end(l, "released")
	c.giveBack(l.slot, 1)
}

// giveBack releases until it is answered, for one TTL; more often if the acquire was
// in doubt.
func (c *client) giveBack(slot, times int) {
	began := c.w.now
	var try func()
	try = func() {
		c.ask(request{slot: slot}, (*call).release, func(_ int64, a reply) {
			if a.kind == failed && c.w.now < began+c.w.ttl {
				c.when(c.w.now+250, try)
			} else if times--; times > 0 {
				c.when(c.w.now+1000, try)
			}
		})
	}
	try()
}
