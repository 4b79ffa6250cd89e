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
	batchMax     = 128                    // operations a trip: one script call of so many takes Redis about half a millisecond
	inFlight     = 2                      // trips under way
	inFlightFar  = 8                      // where one takes longer than farTrip
	gatherMax    = 2 * time.Millisecond   // that a trip lets others run before it goes
	gatherAgain  = 100 * time.Millisecond // after that took longer, trips go at once for so long
	gatherYields = 8                      // without a new caller, and the trip goes
	farTrip      = time.Millisecond
	abandonedMax = 8 // trips on a client that does not end them in time
)

// pump carries operations to Redis. A caller that finds a trip free makes it on its
// own goroutine, at once. While as many trips as may be are under way, operations
// gather; whoever ends a trip hands all of them to one that waits, which then leads
// the next trip. So nothing waits for a timer, one caller alone pays for nothing,
// and a thousand share their trips.
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
	queue     []*op
	flying    int
	gathering bool         // one of flying has not gone yet: what is in the queue is its
	crowd     bool         // the last trip that ended was not the only one, or not for one caller
	far       bool         // the last trip took long
	arrived   atomic.Int32 // the length of queue, roughly
	hurried   atomic.Int64 // until then, Unix ns, trips do not wait for company
	abandoned int
	ghosts    map[string]chan struct{} // acquires whose callers left while they were under way, by slot id
}

var errTimeout = fmt.Errorf("redisstore: no answer from Redis in time: %w", context.DeadlineExceeded)

// do has o carried to Redis, and returns when it is answered or its time is over.
// An error is about the trip; what Redis answered is in o. left reports that the
// caller has left o under way: it must not touch it any more.
func (p *pump) do(ctx context.Context, o *op) (left bool, err error) {
	o.due = time.Now().Add(o.budget)
	if d, ok := ctx.Deadline(); ok && d.Before(o.due) {
		o.due, o.hasty = d, true
	}
	direct := p.store.client.direct
	p.mu.Lock()
	if len(p.ghosts) > 0 && o.gives() {
		p.awaitGhost(ctx, o.slot)
	}
	alone := len(p.queue) == 0 && !p.crowd
	if p.flying < p.flights() && direct && !p.gathering && len(p.queue) < batchMax && (alone || !o.hasty) {
		p.flying++
		p.queue = append(p.queue, o) // behind handed-over releases: they ride along
		p.lead(ctx, o, p.crowd)
		return false, o.err
	}
	if o.turn == nil {
		o.turn = make(chan struct{}, 1)
	}
	p.queue = append(p.queue, o)
	p.arrived.Store(int32(len(p.queue)))
	p.next()
	p.mu.Unlock()
	if ctx.Done() == nil && direct { // what is under way ends in time
		<-o.turn
		if o.lead {
			p.mu.Lock()
			p.lead(ctx, o, true)
		}
		return false, o.err
	}
	var late <-chan time.Time
	if o.hasty || !direct {
		timer := time.NewTimer(time.Until(o.due))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-o.turn:
	case <-ctx.Done():
		if p.leave(o) {
			return true, ctx.Err()
		}
	case <-late:
		if p.leave(o) {
			return true, errTimeout
		}
	}
	if o.lead {
		p.mu.Lock()
		p.lead(ctx, o, true)
	}
	return false, o.err
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
	for n, still := p.arrived.Load(), 0; n < batchMax/2 && still < gatherYields; {
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

// lead makes the next trip, and o is in it. mu is held, and given back.
func (p *pump) lead(ctx context.Context, o *op, gather bool) {
	if gather && len(p.queue) < batchMax/2 {
		p.gathering = true
		p.mu.Unlock()
		p.gather()
		p.mu.Lock()
	}
	p.gathering = false
	t := p.take()
	p.next()
	p.mu.Unlock()
	if len(t.ops) > 1 {
		ctx = context.WithoutCancel(ctx)
	}
	p.fly(ctx, t, o)
}

// enqueue has o carried without waiting for it. o.async hears how it ended.
func (p *pump) enqueue(o *op) {
	o.due = time.Now().Add(o.budget)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, o)
	p.arrived.Store(int32(len(p.queue)))
	p.next()
}

// leave is what a caller does whose time is over. It returns false if o was
// answered, or was to lead a trip, at the last moment.
func (p *pump) leave(o *op) bool {
	p.mu.Lock()
	if o.landed { // its answer is there, and the word of it on its way
		p.mu.Unlock()
		<-o.turn
		return false
	}
	defer p.mu.Unlock()
	if o.lead {
		<-o.turn
		return false
	}
	o.gone = true
	if o.takes {
		if p.ghosts == nil {
			p.ghosts = make(map[string]chan struct{})
		}
		p.ghosts[o.slot] = make(chan struct{})
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

// take takes the next trip from the queue. mu is held.
func (p *pump) take() (t *trip) {
	t = p.store.trip()
	n := min(len(p.queue), batchMax)
	for i, o := range p.queue[:n] {
		if o.gone {
			p.lay(p.queue[i : i+1])
			continue
		}
		t.ops = append(t.ops, o)
	}
	rest := copy(p.queue, p.queue[n:])
	clear(p.queue[rest:])
	p.queue = p.queue[:rest]
	return t
}

// next has the next trip made, if there is something to carry and a trip is free: by the
// first in the queue whose caller waits without a timer of its own, or by a goroutine of
// the pump. mu is held.
func (p *pump) next() {
	if len(p.queue) == 0 || p.flying >= p.flights() || p.gathering {
		return
	}
	p.flying++
	p.gathering = true // until it runs
	if p.store.client.direct {
		for _, o := range p.queue[:min(len(p.queue), batchMax)] {
			if !o.gone && o.async == nil && !o.hasty {
				o.lead = true
				o.turn <- struct{}{}
				return
			}
		}
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
	due := latest(t.ops)
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
	var late []*op
	full := p.abandoned >= abandonedMax
	if !full { // else its place is not given on before it has ended
		late = p.end(true)
	}
	p.mu.Unlock()
	tell(t.ops, nil)
	tell(late, nil)
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
	tell(t.ops, self)
	tell(late, nil)
	p.store.recycle(t)
}

// end gives a trip on: what has gathered goes on the next. dead says that Redis did
// not answer for a whole budget; who has waited for it meanwhile will not wait for
// another one, and is returned. mu is held.
func (p *pump) end(dead bool) (late []*op) {
	p.flying--
	if dead && !p.gathering {
		late, p.queue = p.queue, nil
		p.lay(late)
		for _, o := range late {
			o.err = errTimeout
		}
	}
	p.next()
	return late
}

// tell wakes the callers of a batch, but for self.
func tell(batch []*op, self *op) {
	for _, o := range batch {
		switch {
		case o == self:
		case o.async != nil:
			o.async(o.id, o.slot, o.err)
		case o.turn != nil:
			o.turn <- struct{}{} // there is room: it is told once
		}
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
