package gotsem

import (
	"context"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

const (
	backlogMax   = 10_000                 // slots owed to the store; more lapse by themselves
	backlogBatch = 64                     // given back at a time
	backlogRetry = 250 * time.Millisecond // until a failed one is tried again
	backlogAgain = time.Second            // until a doubtful one is given back once more
)

// backlog gives slots back in the background: those of callers who did not wait
// for it, and those that the store did not take when it should have. It keeps
// trying for one TTL; after that the slots have lapsed. Its one goroutine lives
// while something is owed.
type backlog struct {
	guard *guard
	ttl   time.Duration

	mu      sync.Mutex
	owed    map[string]*debt // by slot id
	running bool
	tried   time.Duration // when one was tried though the store is known to be away
	closing chan struct{}
	done    chan struct{}   // closed when the goroutine ends
	ctx     context.Context // of what is given back; over when Close waits no longer
	cut     context.CancelFunc
}

type debt struct {
	id, slotID string
	due, until time.Duration
	doubtful   bool   // an acquire was not answered: it may reach the store after the release
	lease      *Lease // whose slot it is; nil: nobody's, or the store may have heard of the release
}

func (b *backlog) init(g *guard, ttl time.Duration) {
	b.guard, b.ttl = g, ttl
	b.owed = make(map[string]*debt)
	b.closing = make(chan struct{})
	b.ctx, b.cut = context.WithCancel(context.Background())
}

// add owes the store a release.
func (b *backlog) add(id, slotID string, doubtful bool) {
	b.put(&debt{id: id, slotID: slotID, doubtful: doubtful})
}

func (b *backlog) put(d *debt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.owed) >= backlogMax {
		return
	}
	if b.ctx.Err() != nil { // closed: who was late has one try, and no goroutine that stays
		go b.once(d)
		return
	}
	now := b.guard.now()
	d.due, d.until = now, now+b.ttl
	b.owed[d.slotID] = d
	if !b.running {
		b.running, b.done = true, make(chan struct{})
		go b.run(b.done)
	}
}

// take returns a debt of id that a lease of the same weight left, and forgets
// it: whoever takes it goes on with its slot.
func (b *backlog) take(id string, weight int, now time.Duration) *Lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.owed {
		if l := d.lease; l != nil && d.id == id && l.weight == weight && now < time.Duration(l.trust.Load()) {
			delete(b.owed, d.slotID)
			return l
		}
	}
	return nil
}

func (b *backlog) run(done chan struct{}) {
	defer close(done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		batch, wait, over := b.next()
		if over {
			return
		}
		if len(batch) == 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-b.closing:
				b.mu.Lock()
				for _, d := range b.owed {
					d.due = 0 // now or never
				}
				b.mu.Unlock()
				time.Sleep(time.Millisecond) // not a spin while the store fails
			}
			continue
		}
		var all sync.WaitGroup
		for _, d := range batch {
			all.Go(func() { b.settle(d) })
		}
		all.Wait()
	}
}

// next returns what is due, or how long until something is.
func (b *backlog) next() (batch []*debt, wait time.Duration, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.guard.now()
	wait = backlogAgain
	most := backlogBatch
	if b.guard.open.Load() { // one at a time is enough to keep probing; all would be told the same
		if most = 1; now < b.tried+backlogRetry {
			most = 0
		} else {
			b.tried = now
		}
	}
	for slotID, d := range b.owed {
		switch {
		case d.until <= now:
			delete(b.owed, slotID)
		case d.due <= now && len(batch) < most:
			batch = append(batch, d)
		case d.due <= now:
			wait = min(wait, backlogRetry)
		default:
			wait = min(wait, d.due-now)
		}
	}
	if len(b.owed) == 0 {
		b.running = false
		return nil, 0, true
	}
	return batch, max(wait, time.Millisecond), false
}

func (b *backlog) settle(d *debt) {
	g := b.guard
	b.mu.Lock()
	lease := d.lease
	d.lease = nil // the store may hear of the release from now on
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(b.ctx, g.timeout)
	defer cancel()
	freed, err := g.release(ctx, &store.Release{ID: d.id, SlotID: d.slotID, Grace: g.grace})
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.owed[d.slotID] != d: // taken meanwhile
	case err != nil:
		if d.due = g.now() + backlogRetry; !asked(err) {
			d.lease = lease
		}
	case d.doubtful && !freed:
		d.doubtful = false
		d.due = g.now() + backlogAgain
	default:
		delete(b.owed, d.slotID)
	}
}

// once gives d back after Close, or leaves it to lapse.
func (b *backlog) once(d *debt) {
	g := b.guard
	ctx, cancel := context.WithTimeout(context.Background(), g.timeout)
	defer cancel()
	_, _ = g.release(ctx, &store.Release{ID: d.id, SlotID: d.slotID, Grace: g.grace})
}

// close waits, for as long as ctx allows, until nothing is owed, and returns what
// is. It then cuts off what is under way, and waits for its end as long as whole allows.
func (b *backlog) close(ctx, whole context.Context) int {
	b.mu.Lock()
	select {
	case <-b.closing:
	default:
		close(b.closing)
	}
	running, done := b.running, b.done
	b.mu.Unlock()
	if running {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	b.mu.Lock()
	left := len(b.owed)
	clear(b.owed) // they lapse
	b.cut()
	b.mu.Unlock()
	if running && left > 0 {
		select {
		case <-done:
		case <-whole.Done():
		}
	}
	return left
}
