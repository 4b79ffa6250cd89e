package redisstore

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	tripRoom     = 256                    // of a trip, which takes Redis a millisecond at most
	roomPlain    = 1                      // of that, for what is done by the plain script
	roomFull     = 2                      // for any other operation
	inFlight     = 3                      // trips under way
	inFlightFar  = 8                      // where one takes longer than farTrip
	gatherEnough = 64                     // operations, and a trip goes
	gatherMax    = 2 * time.Millisecond   // that it lets others run before it goes
	gatherAgain  = 100 * time.Millisecond // after that took longer, trips go at once for so long
	gatherYields = 8                      // without a new caller, and the trip goes
	farTrip      = time.Millisecond
	dueSpread    = 10 * time.Millisecond // by how much the operations of a trip differ in when they are due
	giveUpAfter  = 5 * time.Millisecond  // a trip is due, and it is given up: it may know better why it failed
	abandonedMax = 8                     // trips that were given up and have not ended
)

// trip is what one round trip carries. Trips are used again.
type trip struct {
	ops    []*op
	room   int           // for more
	first  time.Time     // when the first of the ops is due
	due    time.Time     // when it ends at the latest, which is when the last of them is
	leader *op           // who makes it; nil: a goroutine of the pump
	done   chan struct{} // closed when it is answered; nil: nobody but the leader waits for that

	byLeader bool // under way on the goroutine of its leader
	givenUp  bool // it did not end in time, and its callers were told
	keeps    bool // it was given up, and has not given its place on

	ctx tripContext
}

// pump carries operations to Redis. A caller that finds a trip free makes it on its
// own goroutine, at once. While as many trips as may be are under way, operations
// gather for the next; whoever ends a trip has it made by one of those who wait for it.
// So nothing waits for a timer, one caller alone pays for nothing, and a thousand share
// their trips.
//
// Where there is a crowd, a trip that ends wakes many at once, and the first of them
// finds a trip free: it lets the others run before it goes, so that they ride along
// and not behind it.
//
// Every trip has a time when it is due, and ends then at the latest for all who ride in
// it. A caller makes a trip itself only where run ends with its ctx and the caller's own
// ctx cannot be cancelled. All other trips are made on goroutines of the pump: a caller
// whose ctx ends leaves, and a trip that does not end in time is given up, which means
// that its callers are told and its goroutine is left to end by itself.
//
// All that waits in a pump waits for one server: see Store.pump.
type pump struct {
	store  *Store
	run    func(ctx context.Context, ops []*op) // sends operations, and answers them
	inline bool                                 // run ends with its ctx

	mu        sync.Mutex
	waiting   []*trip // those that have not gone; operations get on the last
	under     []*trip // those under way, and those given up that have not ended
	flying    int
	gathering bool         // one of flying has not gone yet: it is the first of waiting
	crowd     bool         // the last trip that ended was not the only one, or not for one caller
	far       bool         // the last trip took long
	arrived   atomic.Int32 // operations waiting, roughly
	hurried   atomic.Int64 // until then, Unix ns, trips do not wait for company
	abandoned int

	watch *time.Timer // looks for what is due
	armed time.Time   // when it will; zero: it will not
}

var errTimeout = fmt.Errorf("redisstore: no answer from Redis in time: %w", context.DeadlineExceeded)

// do has o carried to Redis, and returns when it is answered or its time is over.
// An error is about the trip; what Redis answered is in o. left reports that the
// caller has left o under way: it must not touch it any more.
func (p *pump) do(ctx context.Context, o *op) (left bool, err error) {
	done := ctx.Done()
	o.due = p.store.due(o.budget)
	if d, ok := ctx.Deadline(); ok && d.Before(o.due) {
		if done == nil { // the only way to tell it that its time is over
			bounded, cancel := context.WithDeadline(ctx, d)
			defer cancel()
			ctx, done = bounded, bounded.Done()
		}
		o.due = d
	}
	if o.verb.gives() && p.store.doubts.any() {
		if err := p.store.doubts.wait(ctx, o); err != nil {
			return false, err
		}
	}
	inline := p.inline && done == nil
	p.mu.Lock()
	// Where a trip is free, nothing waits but what another is about to take along.
	if p.flying < p.flights() && len(p.waiting) == 0 && (inline || !p.crowd) {
		p.flying++
		t := p.board(o)
		t.ctx.values = ctx
		if inline {
			t.leader = o
			p.lead(t, p.crowd)
			return false, o.err
		}
		turn := o.waits(t, false)
		p.start(p.take(), false)
		p.mu.Unlock()
		go p.fly(t, nil)
		return p.await(ctx, o, turn)
	}
	t := p.board(o)
	turn := o.waits(t, inline)
	p.next()
	p.mu.Unlock()
	if left, err := p.await(ctx, o, turn); left || !o.lead {
		return left, err
	}
	p.mu.Lock()
	p.lead(t, true)
	return false, o.err
}

// await waits until o is answered, or is to lead its trip, or its time is over.
func (p *pump) await(ctx context.Context, o *op, turn <-chan struct{}) (left bool, err error) {
	if done := ctx.Done(); done == nil {
		<-turn
	} else {
		select {
		case <-turn:
		case <-done:
			if p.leave(o, turn) {
				return true, ctx.Err()
			}
		}
	}
	switch {
	case o.late:
		return true, errTimeout
	case o.lead:
		return false, nil
	}
	return false, o.err
}

// board has o go with the last of the trips that wait, or with a new one. mu is held.
func (p *pump) board(o *op) *trip {
	room := roomFull
	if o.verb.plain() {
		room = roomPlain
	}
	if o.due.IsZero() {
		o.due = p.store.due(o.budget)
	}
	n := len(p.waiting)
	if n == 0 || p.waiting[n-1].room < room || !p.waiting[n-1].fits(o.due) {
		t := p.store.trip()
		t.room, t.first, t.due = tripRoom, o.due, o.due
		p.waiting = append(p.waiting, t)
		n++
		p.arm(t.due)
	}
	t := p.waiting[n-1]
	if o.due.After(t.due) {
		t.due = o.due
	} else if o.due.Before(t.first) {
		t.first = o.due
	}
	t.ops = append(t.ops, o)
	t.room -= room
	p.arrived.Add(1)
	return t
}

// fits reports whether what is due then may go with t: no two that go together are due
// more than dueSpread apart.
func (t *trip) fits(due time.Time) bool {
	return due.Sub(t.first) <= dueSpread && t.due.Sub(due) <= dueSpread
}

// waits returns what tells o that it is answered, or that it is to lead its trip. The
// first that may lead is told by its own channel; all others are told by one. mu of the
// pump is held.
func (o *op) waits(t *trip, inline bool) <-chan struct{} {
	if inline && t.leader == nil {
		if o.turn == nil {
			o.turn = make(chan struct{}, 1)
		}
		t.leader = o
		return o.turn
	}
	if t.done == nil {
		t.done = make(chan struct{})
	}
	return t.done
}

// flights is how many trips may be under way. mu is held.
func (p *pump) flights() int {
	if p.far {
		return inFlightFar
	}
	return inFlight
}

// gather lets those run who were just woken, for as long as they come here. Where
// others keep the processors busy, letting them run costs more than it gains, and it is
// not tried again for a while.
func (p *pump) gather() {
	began := time.Now()
	if began.UnixNano() < p.hurried.Load() {
		return
	}
	for n, still := p.arrived.Load(), 0; n < gatherEnough && still < gatherYields; {
		runtime.Gosched()
		if now := time.Now(); now.Sub(began) > gatherMax {
			p.hurried.Store(now.Add(gatherAgain).UnixNano())
			return
		}
		if m := p.arrived.Load(); m != n {
			n, still = m, 0
		} else {
			still++
		}
	}
}

// lead makes t, the first of those that wait, for its leader. mu is held, and given
// back.
func (p *pump) lead(t *trip, gather bool) {
	if gather && len(t.ops) < gatherEnough {
		p.gathering = true
		p.mu.Unlock()
		p.gather()
		p.mu.Lock()
	}
	p.gathering = false
	p.start(p.take(), true)
	p.next()
	p.mu.Unlock()
	p.fly(t, t.leader)
}

// enqueue has o carried without waiting for it. o.async hears how it ended.
func (p *pump) enqueue(o *op) {
	if o.verb.gives() && p.store.doubts.any() {
		go func() {
			if err := p.store.doubts.wait(context.Background(), o); err != nil {
				o.async(o.id, o.slot, err)
				return
			}
			p.put(o)
		}()
		return
	}
	p.put(o)
}

func (p *pump) put(o *op) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.board(o)
	p.next()
}

// leave is what a caller does whose time is over. It returns false if o was
// answered, or was to lead a trip, at the last moment.
func (p *pump) leave(o *op, turn <-chan struct{}) bool {
	p.mu.Lock()
	if o.done || o.lead || o.late { // the word of it is on its way
		p.mu.Unlock()
		<-turn
		return false
	}
	defer p.mu.Unlock()
	o.abandoned = true
	if o.verb.takes() && o.sent {
		p.store.doubts.begin(o.slot)
	}
	return true
}

// lay notes that what was under way has ended. mu is held.
func (p *pump) lay(t *trip) {
	for _, o := range t.ops {
		if o.verb.takes() && (o.abandoned || o.late) {
			p.store.doubts.end(o.slot)
		}
		if !o.late { // else its caller has looked, and does not hold mu
			o.done = true
		}
	}
}

// take takes the first of the trips that wait, without those whose callers have left. mu
// is held.
func (p *pump) take() *trip {
	t := p.waiting[0]
	p.drop(0)
	stay := t.ops[:0]
	for _, o := range t.ops {
		if o.abandoned {
			continue
		}
		o.sent = true
		stay = append(stay, o)
	}
	clear(t.ops[len(stay):])
	t.ops = stay
	return t
}

// drop takes the i-th of the trips that wait off the list. mu is held.
func (p *pump) drop(i int) {
	p.arrived.Add(int32(-len(p.waiting[i].ops)))
	rest := i + copy(p.waiting[i:], p.waiting[i+1:])
	p.waiting[rest] = nil
	p.waiting = p.waiting[:rest]
}

// start notes that t is under way. mu is held.
func (p *pump) start(t *trip, byLeader bool) {
	t.byLeader = byLeader
	t.ctx.begin(t.due)
	p.under = append(p.under, t)
	p.arm(t.due)
}

// next has the next trip made, if one waits and one is free: by its leader, or by a
// goroutine of the pump. mu is held.
func (p *pump) next() {
	if len(p.waiting) == 0 || p.flying >= p.flights() || p.gathering {
		return
	}
	p.flying++
	p.gathering = true // until it runs
	t := p.waiting[0]
	// Who leads waits as long as the trip does.
	if o := t.leader; o != nil && t.due.Sub(o.due) <= dueSpread {
		o.lead = true
		o.turn <- struct{}{}
		return
	}
	go p.carry()
}

// carry makes a trip on a goroutine of the pump.
func (p *pump) carry() {
	p.gather() // also for one: who hands over a release does not wait, and renewals come in batches
	p.mu.Lock()
	p.gathering = false
	t := p.take()
	if len(t.ops) == 0 { // all of them have left
		p.flying--
	} else {
		p.start(t, false)
	}
	p.next()
	p.mu.Unlock()
	if len(t.ops) == 0 {
		p.store.recycle(t)
		return
	}
	p.fly(t, nil)
}

// fly makes a trip, and ends it. self is the op of the caller that makes it, if it is
// one.
func (p *pump) fly(t *trip, self *op) {
	if len(t.ops) > 1 {
		t.ctx.values = nil
	}
	began := time.Now()
	p.run(&t.ctx, t.ops)
	p.land(t, self, time.Since(began))
}

// land gives the answers of a trip to those who wait for them, and ends it.
func (p *pump) land(t *trip, self *op, took time.Duration) {
	p.mu.Lock()
	for i, other := range p.under {
		if other == t {
			last := len(p.under) - 1
			p.under[i], p.under[last] = p.under[last], nil
			p.under = p.under[:last]
			break
		}
	}
	p.lay(t)
	if t.givenUp { // its callers have been told
		p.abandoned--
		if t.keeps {
			p.flying--
			p.next()
		}
		p.mu.Unlock()
		return
	}
	p.far = took > farTrip
	p.crowd = p.flying > 1 || len(t.ops) > 1
	p.flying--
	p.next()
	p.mu.Unlock()
	p.tell(t, self)
}

// tell has those who ride in t hear that they are answered, but for self, and t used
// again.
func (p *pump) tell(t *trip, self *op) {
	for _, o := range t.ops {
		if o.async != nil {
			o.async(o.id, o.slot, o.err)
			p.store.free(o, false)
		}
	}
	if o := t.leader; o != nil && o != self && !o.abandoned {
		o.turn <- struct{}{} // there is room: it is told once
	}
	if t.done != nil {
		close(t.done)
	}
	p.store.recycle(t)
}

// arm has the watch look at due, at the latest. mu is held.
func (p *pump) arm(due time.Time) {
	if !p.armed.IsZero() && !due.Before(p.armed) {
		return
	}
	p.armed = due
	if p.watch == nil {
		p.watch = time.AfterFunc(time.Until(due), p.expire)
	} else {
		p.watch.Reset(time.Until(due))
	}
}

// expire ends what is due. What waits is answered; what is under way has its ctx end,
// and is given up a little later if that does not end it.
func (p *pump) expire() {
	now := time.Now()
	var over, late []*trip
	p.mu.Lock()
	p.armed = time.Time{}
	for i := len(p.waiting) - 1; i >= 0; i-- {
		t := p.waiting[i]
		switch {
		case now.Before(t.due):
			p.arm(t.due)
		case i > 0 || !p.gathering: // else it is about to go
			p.drop(i)
			for _, o := range t.ops {
				o.done, o.err = true, errTimeout
			}
			over = append(over, t)
		}
	}
	for _, t := range p.under {
		switch {
		case now.Before(t.due):
			p.arm(t.due)
			continue
		case t.givenUp:
			continue
		}
		t.ctx.end()
		if t.byLeader {
			continue
		}
		if last := t.due.Add(giveUpAfter); now.Before(last) {
			p.arm(last)
			continue
		}
		p.giveUp(t)
		late = append(late, t)
	}
	p.mu.Unlock()
	for _, t := range over {
		p.tell(t, nil)
	}
	for _, t := range late {
		p.tellLate(t)
	}
}

// giveUp has a trip that does not end in time left behind. Its place is given on, but
// not if as many are left behind as may be. mu is held.
func (p *pump) giveUp(t *trip) {
	t.givenUp = true
	for _, o := range t.ops {
		if o.abandoned {
			continue
		}
		o.late = true
		if o.verb.takes() {
			p.store.doubts.begin(o.slot)
		}
	}
	p.abandoned++
	if t.keeps = p.abandoned >= abandonedMax; !t.keeps {
		p.flying--
		p.next()
	}
}

// tellLate has those who ride in a trip that was given up hear of it. Their ops are
// still being written to, and are not used again.
func (p *pump) tellLate(t *trip) {
	p.store.client.lookAround(errTimeout)
	for _, o := range t.ops {
		if o.async != nil {
			o.async(o.id, o.slot, errTimeout)
		}
	}
	if o := t.leader; o != nil && !o.abandoned {
		o.turn <- struct{}{}
	}
	if t.done != nil {
		close(t.done)
	}
}

// doubts are the acquires whose callers left while they were under way, by slot id. A
// release of one of them waits, so that it does not overtake what it cleans up after.
type doubts struct {
	n    atomic.Int32
	mu   sync.Mutex
	over map[string]*doubt
}

type doubt struct {
	acquires int           // a slot id may be asked for twice
	over     chan struct{} // closed when the last of them has ended
}

func (d *doubts) any() bool { return d.n.Load() > 0 }

// begin notes that an acquire of the slot id is in doubt. end must follow.
func (d *doubts) begin(slot string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over == nil {
		d.over = make(map[string]*doubt)
	}
	if d.over[slot] == nil {
		d.over[slot] = &doubt{over: make(chan struct{})}
	}
	d.over[slot].acquires++
	d.n.Add(1)
}

func (d *doubts) end(slot string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.n.Add(-1)
	if one := d.over[slot]; one != nil {
		if one.acquires--; one.acquires == 0 {
			close(one.over)
			delete(d.over, slot)
		}
	}
}

// wait waits until nothing about o's slot id is in doubt, for as long as o has time.
func (d *doubts) wait(ctx context.Context, o *op) error {
	d.mu.Lock()
	one := d.over[o.slot]
	d.mu.Unlock()
	if one == nil {
		return nil
	}
	if o.due.IsZero() {
		o.due = time.Now().Add(o.budget)
	}
	timer := time.NewTimer(time.Until(o.due))
	defer timer.Stop()
	select {
	case <-one.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return errTimeout
	}
}

// trip returns an empty trip.
func (s *Store) trip() *trip { return s.trips.Get().(*trip) }

// recycle has a trip used again, when its ops are answered and nobody leads it any
// more.
func (s *Store) recycle(t *trip) {
	clear(t.ops)
	t.ops, t.leader, t.done, t.byLeader = t.ops[:0], nil, nil, false
	t.ctx.reset()
	s.trips.Put(t)
}

// tripContext is the ctx of a trip. It ends when the trip is due, and costs no timer:
// the pump's watch ends it.
type tripContext struct {
	values context.Context // of the only caller; nil: of none
	due    time.Time
	over   chan struct{} // closed at the end; used again by the next trip if that does not come
	ended  atomic.Bool
}

func (c *tripContext) begin(due time.Time) {
	c.due = due
	if c.over == nil {
		c.over = make(chan struct{})
	}
}

// end ends the ctx. mu of the pump is held.
func (c *tripContext) end() {
	if c.ended.CompareAndSwap(false, true) {
		close(c.over)
	}
}

// reset makes the ctx fit for another trip.
func (c *tripContext) reset() {
	c.values = nil
	if c.ended.Load() {
		c.over = nil
		c.ended.Store(false)
	}
}

func (c *tripContext) Deadline() (time.Time, bool) { return c.due, true }
func (c *tripContext) Done() <-chan struct{}       { return c.over }

func (c *tripContext) Err() error {
	if c.ended.Load() {
		return context.DeadlineExceeded
	}
	return nil
}

func (c *tripContext) Value(key any) any {
	if c.values == nil {
		return nil
	}
	return c.values.Value(key)
}
