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
	roomBare     = 1                      // of that, for what is done by bare.lua
	roomWhole    = 2                      // for any other operation
	inFlight     = 3                      // trips under way
	inFlightFar  = 8                      // where one takes longer than farTrip
	gatherEnough = 64                     // operations, and a trip goes
	gatherMax    = 2 * time.Millisecond   // that it lets others run before it goes
	gatherAgain  = 100 * time.Millisecond // after that took longer, trips go at once for so long
	gatherYields = 8                      // without a new caller, and the trip goes
	farTrip      = time.Millisecond
	abandonedMax = 8 // trips on a client that does not end them in time
)

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
// On a client whose calls do not end with their ctx (see client), trips are made on
// goroutines of the pump, and a trip that does not end is left behind.
type pump struct {
	store *Store

	mu        sync.Mutex
	waiting   []*trip // those that have not gone; operations get on the last
	flying    int
	gathering bool         // one of flying has not gone yet: it is the first of waiting
	crowd     bool         // the last trip that ended was not the only one, or not for one caller
	far       bool         // the last trip took long
	arrived   atomic.Int32 // operations waiting, roughly
	hurried   atomic.Int64 // until then, Unix ns, trips do not wait for company
	abandoned int
	ghosts    map[string]chan struct{} // acquires whose callers left while they were under way, by slot id
}

var errTimeout = fmt.Errorf("redisstore: no answer from Redis in time: %w", context.DeadlineExceeded)

// do has o carried to Redis, and returns when it is answered or its time is over.
// An error is about the trip; what Redis answered is in o. left reports that the
// caller has left o under way: it must not touch it any more.
func (p *pump) do(ctx context.Context, o *op) (left bool, err error) {
	if d, ok := ctx.Deadline(); ok {
		if o.due = time.Now().Add(o.budget); d.Before(o.due) {
			o.due, o.hasty = d, true
		}
	}
	p.mu.Lock()
	if len(p.ghosts) > 0 && o.gives() {
		p.awaitGhost(ctx, o.slot)
	}
	direct := p.store.client.direct
	// Where a trip is free, nothing waits but what another is about to take along.
	if p.flying < p.flights() && direct && len(p.waiting) == 0 && !(p.crowd && o.hasty) {
		p.flying++
		t := p.board(o)
		t.leader = o
		p.lead(ctx, t, p.crowd)
		return false, o.err
	}
	t := p.board(o)
	turn := o.waits(t, direct)
	p.next()
	p.mu.Unlock()
	if ctx.Done() == nil && direct { // what is under way ends in time
		<-turn
	} else {
		var late <-chan time.Time
		if o.hasty || !direct {
			timer := time.NewTimer(time.Until(o.due))
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-turn:
		case <-ctx.Done():
			err = ctx.Err()
		case <-late:
			err = errTimeout
		}
		if err != nil && p.leave(o, turn) {
			return true, err
		}
	}
	if o.lead {
		p.mu.Lock()
		p.lead(ctx, t, true)
	}
	return false, o.err
}

// board has o go with the last of the trips that wait, or with a new one. mu is held.
func (p *pump) board(o *op) *trip {
	room := roomWhole
	if o.verb == bare {
		room = roomBare
	}
	n := len(p.waiting)
	if n == 0 || p.waiting[n-1].room < room {
		t := p.store.trip()
		t.room = tripRoom
		p.waiting = append(p.waiting, t)
		n++
	}
	t := p.waiting[n-1]
	if o.due.IsZero() {
		o.due = p.store.start.Add(time.Since(p.store.start) + o.budget) // time.Now reads two clocks
	}
	t.ops = append(t.ops, o)
	t.room -= room
	p.arrived.Add(1)
	return t
}

// waits returns what tells o that it is answered, or that it is to lead its trip. The
// first that has no timer of its own may be that; all others are told by one channel. mu
// of the pump is held.
func (o *op) waits(t *trip, direct bool) <-chan struct{} {
	if direct && !o.hasty && t.leader == nil {
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
func (p *pump) lead(ctx context.Context, t *trip, gather bool) {
	if gather && len(t.ops) < gatherEnough {
		p.gathering = true
		p.mu.Unlock()
		p.gather()
		p.mu.Lock()
	}
	p.gathering = false
	p.take()
	p.next()
	p.mu.Unlock()
	if len(t.ops) > 1 {
		ctx = context.WithoutCancel(ctx)
	}
	p.fly(ctx, t, t.leader)
}

// enqueue has o carried without waiting for it. o.async hears how it ended.
func (p *pump) enqueue(o *op) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.board(o)
	p.next()
}

// leave is what a caller does whose time is over. It returns false if o was
// answered, or was to lead a trip, at the last moment.
func (p *pump) leave(o *op, turn <-chan struct{}) bool {
	p.mu.Lock()
	if o.landed || o.lead { // the word of it is on its way
		p.mu.Unlock()
		<-turn
		return false
	}
	defer p.mu.Unlock()
	o.gone = true
	if o.takes {
		if p.ghosts == nil {
			p.ghosts = make(map[string]chan struct{})
		}
		if p.ghosts[o.slot] == nil { // else it was asked for twice: who lands first ends both
			p.ghosts[o.slot] = make(chan struct{})
		}
	}
	return true
}

// awaitGhost keeps a release from overtaking the acquire that it cleans up after. mu is
// held, but not meanwhile.
func (p *pump) awaitGhost(ctx context.Context, slot string) {
	ghost := p.ghosts[slot]
	if ghost == nil {
		return
	}
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-ghost:
	case <-ctx.Done():
	}
}

// lay notes that a batch has landed, and ends its ghosts. mu is held.
func (p *pump) lay(batch []*op) {
	for _, o := range batch {
		o.landed = true
		if len(p.ghosts) == 0 {
			continue
		}
		if ghost := p.ghosts[o.slot]; ghost != nil && o.takes {
			close(ghost)
			delete(p.ghosts, o.slot)
		}
	}
}

// take takes the first of the trips that wait, without those whose callers have left. mu
// is held.
func (p *pump) take() *trip {
	t := p.waiting[0]
	rest := copy(p.waiting, p.waiting[1:])
	p.waiting[rest] = nil
	p.waiting = p.waiting[:rest]
	p.arrived.Add(int32(-len(t.ops)))
	stay := t.ops[:0]
	for i, o := range t.ops {
		if o.gone {
			p.lay(t.ops[i : i+1])
			continue
		}
		stay = append(stay, o)
	}
	clear(t.ops[len(stay):])
	t.ops = stay
	return t
}

// next has the next trip made, if one waits and one is free: by its leader, or by a
// goroutine of the pump. mu is held.
func (p *pump) next() {
	if len(p.waiting) == 0 || p.flying >= p.flights() || p.gathering {
		return
	}
	p.flying++
	p.gathering = true // until it runs
	if o := p.waiting[0].leader; o != nil && !o.gone {
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
	}
	p.next()
	p.mu.Unlock()
	if len(t.ops) == 0 {
		p.store.recycle(t)
		return
	}
	if p.store.client.direct {
		p.fly(context.Background(), t, nil)
		return
	}
	// What is left behind must not write into what was answered in its stead.
	copied := p.store.trip()
	for _, o := range t.ops {
		copied.ops = append(copied.ops, &op{question: o.question})
	}
	began, budget, due := time.Now(), t.ops[0].budget, latest(t.ops)
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithDeadline(context.Background(), due)
		defer cancel()
		err := p.store.fly(ctx, copied)
		p.mu.Lock()
		p.lay(copied.ops)
		p.mu.Unlock()
		done <- err
	}()
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-done:
		for i, o := range t.ops {
			o.answer = copied.ops[i].answer
		}
		p.store.recycle(copied)
		p.land(t, nil, 0, false)
		return
	case <-timer.C:
	}
	for _, o := range t.ops {
		o.err = errTimeout
	}
	p.mu.Lock()
	for _, o := range t.ops {
		o.landed = true // their ghosts stay until the trip really ends
	}
	p.abandoned++
	var late []*trip
	full := p.abandoned >= abandonedMax
	if !full { // else its place is not given on before it has ended
		late = p.end(time.Since(began) >= budget) // else it is a caller's ctx that is over
	}
	p.mu.Unlock()
	p.tell(t, nil)
	p.tellLate(late)
	<-done
	p.store.recycle(copied)
	p.mu.Lock()
	p.abandoned--
	if full {
		p.end(false)
	}
	p.mu.Unlock()
}

// fly makes a trip, on a client whose calls end with their ctx. self is the op of the
// caller that makes it, if it is one.
func (p *pump) fly(ctx context.Context, t *trip, self *op) {
	began := time.Now()
	budget, due := t.ops[0].budget, latest(t.ops)
	if p.store.client.shared {
		bounded, cancel := context.WithDeadline(ctx, due)
		defer cancel()
		ctx = bounded
	} else if d, ok := ctx.Deadline(); !ok || due.Before(d) {
		t.ctx = deadlineContext{ctx, due}
		ctx = &t.ctx
	}
	err := p.store.fly(ctx, t)
	took := time.Since(began)
	p.land(t, self, took, err != nil && isTimeout(err) && took >= budget)
}

// land gives the answers of a trip to those who wait for them, and ends it.
func (p *pump) land(t *trip, self *op, took time.Duration, dead bool) {
	p.mu.Lock()
	p.far = took > farTrip
	p.crowd = p.flying > 1 || len(t.ops) > 1
	p.lay(t.ops)
	late := p.end(dead)
	p.mu.Unlock()
	p.tell(t, self)
	p.tellLate(late)
}

// end gives a trip on: what has gathered goes on the next. dead says that Redis did
// not answer for a whole budget; who has waited for it meanwhile will not wait for
// another one, and is returned. mu is held.
func (p *pump) end(dead bool) (late []*trip) {
	p.flying--
	for dead && !p.gathering && len(p.waiting) > 0 {
		t := p.take()
		p.lay(t.ops)
		for _, o := range t.ops {
			o.err = errTimeout
		}
		late = append(late, t)
	}
	p.next()
	return late
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
	if o := t.leader; o != nil && o != self && !o.gone {
		o.turn <- struct{}{} // there is room: it is told once
	}
	if t.done != nil {
		close(t.done)
	}
	p.store.recycle(t)
}

func (p *pump) tellLate(late []*trip) {
	for _, t := range late {
		p.tell(t, nil)
	}
}

// latest is when the last of a batch gives up.
func latest(batch []*op) time.Time {
	due := batch[0].due
	for _, o := range batch[1:] {
		if o.due.After(due) {
			due = o.due
		}
	}
	return due
}

// deadlineContext has a deadline, but no timer: it is for calls that look at the
// deadline themselves.
type deadlineContext struct {
	context.Context
	deadline time.Time
}

func (c *deadlineContext) Deadline() (time.Time, bool) { return c.deadline, true }
