package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Batches beside their callers. Every batch has a time when it is due, and ends then at
// the latest for all who ride in it. A caller runs a batch itself only where exec ends
// with its ctx and the caller's own ctx cannot be cancelled. All other batches run on
// goroutines of the batcher: a caller whose ctx ends leaves, and a batch that does not end
// in time is given up, which means that its callers are told and its goroutine is left to
// end by itself.

const (
	giveUpAfter = 5 * time.Millisecond // a batch is due, and it is given up: it may know better why it failed
	maxGivenUp  = 8                    // batches that have not ended; beyond, they count towards the limit
)

// runDetached runs the first of the batches that wait on a goroutine of the batcher.
func (b *batcher) runDetached() {
	b.gather() // also for one: who hands over a release does not wait, and renewals come in batches
	b.mu.Lock()
	b.gathering = false
	one := b.pop()
	empty := len(one.ops) == 0
	if empty { // all of them have left
		b.flying--
	} else {
		b.begin(one, false)
	}
	b.next()
	b.mu.Unlock()
	if empty {
		b.tell(one, one.leader) // for nobody
		return
	}
	b.run(one, nil)
}

// abandon is what a caller does whose time is over. It returns false if o was
// answered, or was to lead a batch, at the last moment.
func (b *batcher) abandon(o *op, turn <-chan struct{}) bool {
	b.mu.Lock()
	if o.stage != queued && o.stage != sent { // the word of it is on its way
		b.mu.Unlock()
		<-turn
		return false
	}
	defer b.mu.Unlock()
	o.abandoned = true
	if o.verb.takes() && o.stage == sent {
		b.inDoubt.begin(o)
	}
	return true
}

// arm has the watch look at due, at the latest. mu is held.
func (b *batcher) arm(due time.Time) {
	if !b.armed.IsZero() && !due.Before(b.armed) {
		return
	}
	b.armed = due
	if b.watch == nil {
		b.watch = time.AfterFunc(time.Until(due), b.expire)
	} else {
		b.watch.Reset(time.Until(due))
	}
}

// expire ends what is due. What waits is answered; what is running has its ctx end, and
// is given up a little later if that does not end it.
func (b *batcher) expire() {
	now := time.Now()
	b.mu.Lock()
	b.armed = time.Time{}
	over := b.expireWaiting(now)
	late := b.expireRunning(now)
	b.mu.Unlock()
	for _, one := range over {
		b.tell(one, nil)
	}
	for _, one := range late {
		b.tellLate(one)
	}
}

// expireWaiting takes those that are due off the list. mu is held.
func (b *batcher) expireWaiting(now time.Time) (over []*batch) {
	for i := len(b.waiting) - 1; i >= 0; i-- {
		one := b.waiting[i]
		switch {
		case now.Before(one.due):
			b.arm(one.due)
		case i > 0 || !b.gathering: // else it is about to go
			b.drop(i)
			for _, o := range one.ops {
				o.stage, o.err = done, errTimeout
			}
			over = append(over, one)
		}
	}
	return over
}

// expireRunning ends the ctx of those that are due, and gives up those that do not end
// then. mu is held.
func (b *batcher) expireRunning(now time.Time) (late []*batch) {
	for _, one := range b.running {
		switch last := one.due.Add(giveUpAfter); {
		case now.Before(one.due):
			b.arm(one.due)
		case one.givenUp:
		default:
			one.ctx.end()
			if one.byLeader { // it ends with its ctx
				break
			}
			if now.Before(last) {
				b.arm(last)
				break
			}
			b.giveUp(one)
			late = append(late, one)
		}
	}
	return late
}

// giveUp has a batch that does not end in time left behind. It counts towards the limit
// no longer, but if as many are left behind as may be. mu is held.
func (b *batcher) giveUp(one *batch) {
	one.givenUp = true
	for _, o := range one.ops {
		if o.abandoned {
			continue
		}
		o.stage = late
		if o.verb.takes() {
			b.inDoubt.begin(o)
		}
	}
	b.left++
	if one.keeps = b.left >= maxGivenUp; !one.keeps {
		b.flying--
		b.next()
	}
}

// tellLate has those who ride in a batch that was given up hear of it. Their ops are
// still being written to, and neither they nor the batch are used again.
func (b *batcher) tellLate(one *batch) {
	b.givenUp()
	for _, o := range one.ops {
		if o.async != nil {
			o.async(o.id, o.slot, errTimeout)
		}
	}
	one.wake(nil)
}

// inDoubt are the acquires whose callers left while they were under way, by slot id. A
// release of one of them waits, so that it does not overtake what it cleans up after.
type inDoubt struct {
	n    atomic.Int32
	mu   sync.Mutex
	over map[string]*doubt
}

type doubt struct {
	acquires int           // a slot id may be asked for twice
	over     chan struct{} // closed when the last of them has ended
}

func (d *inDoubt) any() bool { return d.n.Load() > 0 }

// begin notes that what o asks for is in doubt. end must follow.
func (d *inDoubt) begin(o *op) {
	for _, p := range o.also {
		d.begin(p)
	}
	slot := o.slot
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

func (d *inDoubt) end(o *op) {
	for _, p := range o.also {
		d.end(p)
	}
	slot := o.slot
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
func (d *inDoubt) wait(ctx context.Context, o *op) error {
	d.mu.Lock()
	one := d.over[o.slot]
	d.mu.Unlock()
	if one == nil {
		return nil
	}
	if o.due.IsZero() {
		o.due = dueIn(o.budget)
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
