package redisstore

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	batchMax     = 128 // operations a trip: one script call of so many takes Redis about half a millisecond
	inFlight     = 2   // trips under way
	abandonedMax = 8   // trips on a client that does not end them in time
)

// pump carries operations to Redis. A caller that finds a trip free makes it on its
// own goroutine, at once. While as many trips as may be are under way, operations
// gather; whoever ends a trip hands all of them to one that waits, which then leads
// the next trip. So nothing waits for a timer, one caller alone pays for nothing,
// and a thousand share their trips.
//
// On a client whose calls do not end with their ctx (see client), trips are made on
// goroutines of the pump, and a trip that does not end is left behind.
type pump struct {
	store *Store

	mu        sync.Mutex
	queue     []*op
	flying    int
	abandoned int
	ghosts    map[string]chan struct{} // acquires whose callers left while they were under way, by slot id
}

var errTimeout = fmt.Errorf("redisstore: no answer from Redis in time: %w", context.DeadlineExceeded)

// do has o carried to Redis, and returns when it is answered or its time is over.
// An error is about the trip; what Redis answered is in o. left reports that the
// caller has left o under way: it must not touch it any more.
func (p *pump) do(ctx context.Context, o *op) (left bool, err error) {
	if o.verb.whole() == release {
		p.awaitGhost(ctx, o.slot)
	}
	o.due = time.Now().Add(o.budget)
	if d, ok := ctx.Deadline(); ok && d.Before(o.due) {
		o.due, o.hasty = d, true
	}
	direct := p.store.client.direct
	p.mu.Lock()
	if p.flying < inFlight && direct {
		p.flying++
		if len(p.queue) == 0 {
			p.mu.Unlock()
			o.alone[0] = o
			p.trip(ctx, o.alone[:], o)
			return false, o.err
		}
		if len(p.queue) < batchMax { // handed-over releases: they ride along
			p.queue = append(p.queue, o)
			batch, _ := p.take()
			p.mu.Unlock()
			p.trip(context.WithoutCancel(ctx), batch, o)
			return false, o.err
		}
		p.flying--
	}
	if o.turn == nil {
		o.turn = make(chan struct{}, 1)
	}
	p.queue = append(p.queue, o)
	p.launch()
	p.mu.Unlock()
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
	if batch := o.lead; batch != nil {
		o.lead = nil
		p.trip(context.WithoutCancel(ctx), batch, o)
	}
	return false, o.err
}

// enqueue has o carried without waiting for it. o.async hears how it ended.
func (p *pump) enqueue(o *op) {
	o.due = time.Now().Add(o.budget)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, o)
	p.launch()
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
	if o.lead != nil {
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

// awaitGhost keeps a release from overtaking the acquire that it cleans up after.
func (p *pump) awaitGhost(ctx context.Context, slot string) {
	p.mu.Lock()
	ghost := p.ghosts[slot]
	p.mu.Unlock()
	if ghost == nil {
		return
	}
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

// take takes the next batch from the queue, and chooses who may lead it: the first
// whose caller waits without a timer of its own. mu is held.
func (p *pump) take() (batch []*op, leader *op) {
	n := min(len(p.queue), batchMax)
	batch = make([]*op, 0, n)
	for i, o := range p.queue[:n] {
		if o.gone {
			p.lay(p.queue[i : i+1])
			continue
		}
		if leader == nil && o.async == nil && !o.hasty {
			leader = o
		}
		batch = append(batch, o)
	}
	rest := copy(p.queue, p.queue[n:])
	clear(p.queue[rest:])
	p.queue = p.queue[:rest]
	return batch, leader
}

// launch has what is in the queue carried by a goroutine of the pump, if a trip is
// free. mu is held.
func (p *pump) launch() {
	if p.flying >= inFlight {
		return
	}
	p.flying++
	go func() {
		p.mu.Lock()
		batch, _ := p.take() // what has gathered by now
		p.mu.Unlock()
		p.carry(batch)
	}()
}

// carry makes a trip on the goroutine that it is called on, one of the pump's.
func (p *pump) carry(batch []*op) {
	if len(batch) == 0 {
		p.land(nil, false)
		return
	}
	if p.store.client.direct {
		p.trip(context.Background(), batch, nil)
		return
	}
	// What is left behind must not write into what was answered in its stead.
	copies := make([]*op, len(batch))
	for i, o := range batch {
		copies[i] = &op{question: o.question}
	}
	due := latest(batch)
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithDeadline(context.Background(), due)
		defer cancel()
		err := p.store.fly(ctx, copies)
		p.mu.Lock()
		p.lay(copies)
		p.mu.Unlock()
		done <- err
	}()
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-done:
		for i, o := range batch {
			o.answer = copies[i].answer
		}
		p.land(batch, false)
		tell(batch, nil)
		return
	case <-timer.C:
	}
	for _, o := range batch {
		o.err = errTimeout
	}
	p.mu.Lock()
	for _, o := range batch {
		o.landed = true // their ghosts stay until the trip really ends
	}
	p.abandoned++
	full := p.abandoned >= abandonedMax
	p.mu.Unlock()
	tell(batch, nil)
	if !full { // else its place is not given on before it has ended
		p.land(nil, true)
	}
	<-done
	p.mu.Lock()
	p.abandoned--
	p.mu.Unlock()
	if full {
		p.land(nil, false)
	}
}

// trip makes a round trip, on a client whose calls end with their ctx. self is the
// op of the caller that makes it, if it is one.
func (p *pump) trip(ctx context.Context, batch []*op, self *op) {
	began := time.Now()
	due := latest(batch)
	if p.store.client.shared {
		bounded, cancel := context.WithDeadline(ctx, due)
		defer cancel()
		ctx = bounded
	} else if d, ok := ctx.Deadline(); !ok || due.Before(d) {
		own := &batch[0].solo.ctx
		*own = deadlineContext{ctx, due}
		ctx = own
	}
	err := p.store.fly(ctx, batch)
	p.land(batch, err != nil && isTimeout(err) && time.Since(began) >= batch[0].budget)
	tell(batch, self)
}

// land ends a trip: what has gathered goes on the next. dead says that Redis did
// not answer for a whole budget; who has waited for it meanwhile will not wait for
// another one.
func (p *pump) land(batch []*op, dead bool) {
	p.mu.Lock()
	p.lay(batch)
	if dead {
		late := p.queue
		p.queue = nil
		p.flying--
		p.lay(late)
		p.mu.Unlock()
		for _, o := range late {
			o.err = errTimeout
		}
		tell(late, nil)
		return
	}
	for len(p.queue) > 0 {
		batch, leader := p.take()
		if len(batch) == 0 {
			continue // all of them have left
		}
		if leader != nil && p.store.client.direct {
			leader.lead = batch
			leader.turn <- struct{}{}
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		go p.carry(batch)
		return
	}
	p.flying--
	p.mu.Unlock()
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
