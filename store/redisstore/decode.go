package redisstore

import (
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// specialFor is for how long a store that was told of ids with meta names their keys at once,
// and is not told anew.
const specialFor = 10 * time.Second

// read gives the answer of c to its ops. It adds those that are to be asked anew to rest,
// and returns what is left of the reply: whom to wake.
func (cd *codec) read(c *call, rest []*op) (again []*op, wakeups []any) {
	got, err := c.cmd.Result()
	r := &reply{name: c.verb.script().name, err: classify(err)}
	if list, ok := got.([]any); ok {
		r.list = list
	} else if n, ok := got.(int64); ok { // one slot
		r.one, r.single = true, (n-c.number)/callNumbers
	}
	if c.verb.plain() {
		return cd.readPlain(c, r, rest), nil
	}
	now := r.number() / callNumbers
	if now != 0 {
		cd.clocks.read(c.slot, now, c.sent, time.Now(), c.told)
	}
	if c.verb == joint {
		rest = cd.readJoint(c, r, rest)
		return rest, r.wakeups()
	}
	if c.verb == acquire && len(r.list) == 1 && r.err == nil {
		for _, g := range c.groups {
			rest = g.lateTo(rest)
		}
		return rest, nil
	}
	var highest uint64 // fence or ticket
	for _, g := range c.groups {
		var h uint64
		h, rest = r.group(c, g, now, rest)
		highest = max(highest, h)
	}
	if c.strict && highest > 0 {
		cd.clocks.gave(c.slot, highest)
	}
	return rest, r.wakeups()
}

// wakeups are what is left of a reply: whom to wake.
func (r *reply) wakeups() []any {
	if r.err != nil {
		return nil
	}
	return r.list[min(r.at, len(r.list)):]
}

// group reads the answers to the ops of a group, and adds those that go on to rest. The
// highest fence or ticket among them is returned.
func (r *reply) group(c *call, g *op, now int64, rest []*op) (highest uint64, again []*op) {
	// Of most ids there is an answer for all of their ops together.
	together := c.verb != renew && r.err == nil
	if together {
		first := r.number()
		if together = first >= 0 && r.err == nil; together {
			highest = r.together(c, g, first)
		}
	}
	for o := g; o != nil; o = o.next {
		anew := false
		switch {
		case together:
		case c.verb == acquire:
			anew = r.acquired(o, now)
			highest = max(highest, o.decision.Fence, o.decision.Ticket)
			if o.plain { // the line numbers all of its grants
				o.decision.Fence = 0
			}
		case c.verb == renew:
			anew = r.renewed(o)
		default:
			o.freed = r.number() == 1
		}
		if o.err = r.err; c.unacked != nil && c.verb == acquire && o.decision.Outcome == store.Granted {
			o.err = c.unacked
		}
		if anew && r.err == nil {
			rest = append(rest, o)
		}
	}
	return highest, rest
}

// readPlain is read for what the plain script answers.
func (cd *codec) readPlain(c *call, r *reply, rest []*op) []*op {
	if !r.one {
		if now := r.number() / callNumbers; c.lease && now != 0 {
			cd.clocks.read(c.slot, now, c.sent, time.Now(), false)
		} else if now > 0 {
			cd.clocks.read(c.slot, -now, c.sent, time.Now(), false)
		}
	}
	if !c.inFull && len(r.list) == 1 && r.err == nil { // the keys of meta are to be named
		cd.special.Store(time.Now().Add(specialFor).UnixNano())
		c.each(func(o *op) { o.inFull = true })
		for _, groups := range [...][]*op{c.backs, c.groups} {
			for _, g := range groups {
				rest = g.appendTo(rest)
			}
		}
		return rest
	}
	if c.lease {
		c.fence = r.number()
	}
	first := c.fence
	for _, g := range c.backs {
		if rest = r.plainReleased(g, rest); g.notPlain {
			cd.metas.note(g.id)
		}
	}
	for _, g := range c.groups {
		if rest = r.plainAcquired(c, g, rest); g.notPlain {
			cd.metas.note(g.id)
		}
	}
	if c.strict && c.fence > first {
		cd.clocks.gave(c.slot, uint64(c.fence-1))
	}
	return rest
}

// acquired reads what acquire.lua answers to o. anew: it is to be asked again.
func (r *reply) acquired(o *op, now int64) (anew bool) {
	n := r.number()
	if n == acquireAgain {
		anew, n = o.askAnew(), recoveringNumber
	}
	o.decision = store.Decision{
		Outcome: outcomes[uint64(n)%uint64(len(outcomes))], Active: int(r.number()), Limit: int(r.number()), Waiting: int(r.number()),
		Place: int(r.number()), Fence: uint64(r.number()), Ticket: uint64(r.number()), RetryIn: ms(r.number()),
	}
	if o.decision.Outcome == store.Waiting {
		o.decision.PollID = uint64(max(now, -now))
	}
	return anew
}

// renewed reads what renew.lua answers to o.
func (r *reply) renewed(o *op) (anew bool) {
	n := r.number()
	if n == renewAgain {
		if anew = o.askAnew(); !anew {
			r.err = errClock
		}
	}
	o.outcome = store.RenewOutcome(n)
	return anew
}

// together reads an answer for all the ops of an id: of acquire.lua, that the first n
// are granted and the others refused, of release.lua, that each gave back something. It
// returns the highest fence.
func (r *reply) together(c *call, g *op, n int64) (highest uint64) {
	if c.verb == release {
		for o := g; o != nil; o = o.next {
			o.freed = true
		}
		return 0
	}
	active, fence, lapse := int(r.number()), uint64(r.number()), ms(r.number())
	at := active - int(n)
	for o := g; o != nil; o = o.next {
		if n == 0 {
			o.decision = store.Decision{Outcome: store.Full, Active: active, Limit: int(o.limit), RetryIn: lapse}
			continue
		}
		n, at = n-1, at+1
		o.decision = store.Decision{Outcome: store.Granted, Active: at, Limit: int(o.limit), Fence: fence}
		highest, fence = fence, fence+1
	}
	return highest
}

// plainAcquired reads what the plain script answers for those who ask for a slot of one id.
// Who is refused and would wait goes on to acquire.lua.
func (r *reply) plainAcquired(c *call, g *op, rest []*op) []*op {
	first := r.number()
	if r.err == nil {
		switch first {
		case notPlainAcquire, plainNotWell:
			return g.notPlainTo(rest)
		case plainTooLate:
			return g.lateTo(rest)
		}
	}
	limit := int(g.limit)
	granted := func(o *op, active int64) {
		o.decision = store.Decision{Outcome: store.Granted, Active: int(active), Limit: limit}
		if c.lease && !o.plain {
			o.decision.Fence = uint64(c.fence)
		}
		c.fence++
	}
	full := func(active int64) store.Decision {
		return store.Decision{Outcome: store.Full, Active: int(active), Limit: limit, RetryIn: ms(r.number())}
	}
	if g.next == nil {
		if first >= 0 {
			granted(g, first)
		} else {
			g.decision = full(-first - 1)
		}
		return r.settle(c, g, rest)
	}
	active := r.number()
	o := g
	for n := first; n > 0 && o != nil; n, o = n-1, o.next {
		granted(o, max(active-n+1, 1))
	}
	if o != nil {
		none := full(active)
		for refused := o; refused != nil; refused = refused.next {
			refused.decision = none
		}
		for n := r.number(); n > 0; n-- { // but these were there already, and are no leases
			place := r.number()
			for o = g; place > 1 && o != nil; o = o.next {
				place--
			}
			if o != nil {
				granted(o, active)
			}
		}
	}
	return r.settle(c, g, rest)
}

// settle notes how a plain acquire went that was answered, and has those who are to wait
// go on.
func (r *reply) settle(c *call, g *op, rest []*op) []*op {
	for o := g; o != nil; o = o.next {
		switch o.err = r.err; {
		case r.err != nil:
		case o.decision.Outcome == store.Granted:
			o.err = c.unacked
		case o.queue > 0:
			o.notPlain = true
			rest = append(rest, o)
		}
	}
	return rest
}

// plainReleased reads what the plain script answers for those who give back a slot of one id.
func (r *reply) plainReleased(g *op, rest []*op) []*op {
	n := r.number()
	if n == notPlainRelease && r.err == nil {
		return g.notPlainTo(rest)
	}
	for o := g; o != nil; o = o.next {
		o.freed, o.err = n == 1, r.err
	}
	return rest
}

// notPlainTo adds a group to ops, to be done by a verb that is not plain.
func (o *op) notPlainTo(ops []*op) []*op {
	for ; o != nil; o = o.next {
		o.notPlain, o.firstAttempt = true, false
		ops = append(ops, o)
	}
	return ops
}

// lateTo has a group answered that came too late to take anything. Whose time is not
// over, of that the estimate of the server's clock was wrong, and it is asked again.
func (o *op) lateTo(ops []*op) []*op {
	for ; o != nil; o = o.next {
		if o.askAnew() {
			ops = append(ops, o)
		} else if time.Now().Before(o.due) {
			o.err = errClock
		} else {
			o.err = errTimeout
		}
	}
	return ops
}

// reply is what a script answered, read from front to back.
type reply struct {
	name   string
	list   []any
	single int64
	one    bool
	at     int
	err    error
}

func (r *reply) number() int64 {
	switch {
	case r.err != nil:
		return 0
	case r.one && r.at == 0:
		r.at++
		return r.single
	case r.at >= len(r.list):
		r.err = fmt.Errorf("redisstore: %s answered %d values where more were expected: does another version of its scripts run?", r.name, len(r.list))
		return 0
	}
	n, ok := r.list[r.at].(int64)
	if !ok {
		r.err = fmt.Errorf("redisstore: %s answered %T where a number was expected", r.name, r.list[r.at])
	}
	r.at++
	return n
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// metas remembers for which ids the plain script has said that they have meta, so that
// the next operations on them go by the general scripts at once.
type metas struct {
	some  atomic.Bool
	until [1024]atomic.Int64 // Unix ns, by a hash of the id
}

// metaFor is for how long an id is taken to have meta.
const metaFor = time.Second

func (m *metas) of(id string) *atomic.Int64 {
	return &m.until[maphash.String(hashSeed, id)%uint64(len(m.until))]
}

func (m *metas) note(id string) {
	m.of(id).Store(time.Now().Add(metaFor).UnixNano())
	m.some.Store(true)
}

func (m *metas) has(id string) bool {
	return m.some.Load() && time.Now().UnixNano() < m.of(id).Load()
}

// integer returns the number at reply[at]. A score comes as text.
func integer(reply []any, at int) int {
	if at < len(reply) {
		if n, ok := reply[at].(int64); ok {
			return int(n)
		}
	}
	return 0
}
