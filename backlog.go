package gotsem

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

const (
	backlogMax     = 10_000                 // pending releases; more slots lapse by themselves
	backlogWorkers = 128                    // released at a time: they share their batches
	backlogRetry   = 250 * time.Millisecond // until a failed one is tried again
	backlogAgain   = time.Second            // until one in doubt is released once more, or StoreTimeout if that is longer
	backlogRepeats = backlogMax * 3 / 4     // with more pending, nothing is repeated: what was never released goes first
)

// backlog releases slots in the background: those of callers who did not wait for it,
// and those that the store did not take when it should have. It keeps trying for one
// TTL; after that the slots have lapsed. Its goroutines live while something is
// pending.
//
// What is pending is released at once if nothing stands in the way: one goroutine
// sleeps until the first is due, and each that is due earlier than that wakes it. A
// waiter that gave up holds up those behind it until then.
//
// An acquire in doubt, one that was not answered, may reach the store after its release.
// A store that keeps to the caller's deadline then takes nothing, but for what its idea
// of the time is off by. So it is released once more, when whatever was under way has
// arrived or is too late. Repeating sooner was tried: where callers give up by the
// thousand, the repeats took the store's time from those who wait.
type backlog struct {
	gate *gate

	mu      sync.Mutex
	pending map[slotOf]*pendingRelease
	queue   releaseQueue // those of them that nobody is giving back right now
	workers int          // goroutines that are giving back
	running bool
	wakes   time.Duration // when the goroutine looks by itself
	nudge   chan struct{} // it must look now
	closing bool          // Close waits: what is pending is released now or never
	closed  bool          // what fails now is not tried again
	done    chan struct{} // closed when the goroutine ends

	complained time.Duration // that there is no room
	dropped    uint64        // since then

	ctx    context.Context // of what is under way; Close ends it when it has waited long enough
	cancel context.CancelFunc
}

// slotOf is a slot id of an id. A lease of several ids has the same at all of them.
type slotOf struct{ id, slotID string }

type pendingRelease struct {
	slotOf
	due, until time.Duration
	index      int    // in the queue; -1: not there
	inDoubt    bool   // an acquire was not answered: it may reach the store after the release
	lease      *Lease // whose slot it is, to be taken over; nil: the store may have heard of the release
}

func (b *backlog) init(g *gate) {
	b.gate = g
	b.pending = make(map[slotOf]*pendingRelease)
	b.nudge = make(chan struct{}, 1)
	b.complained = -logEvery
	b.ctx, b.cancel = context.WithCancel(context.Background())
}

// len is how many releases are pending.
func (b *backlog) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pending)
}

// add has a slot released.
func (b *backlog) add(id, slotID string, inDoubt bool) {
	b.put(&pendingRelease{slotOf: slotOf{id, slotID}, inDoubt: inDoubt})
}

// put is add of a release that says more. One of the same slot that is pending
// already is replaced, so that the later one's doubt counts.
func (b *backlog) put(d *pendingRelease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.gate.now()
	old := b.pending[d.slotOf]
	if old == nil && len(b.pending) >= backlogMax {
		b.drop(d, now)
		return
	}
	if old != nil {
		b.forget(old)
	}
	d.due, d.until = now, now+b.gate.ttl
	b.pending[d.slotOf] = d
	heap.Push(&b.queue, d)
	b.look(now)
}

// drop counts a slot for which there is no room, and says so once in a while. mu is
// held.
func (b *backlog) drop(d *pendingRelease, now time.Duration) {
	b.gate.stats.leftToLapse.Add(1)
	b.dropped++
	if now-b.complained < logEvery {
		return
	}
	b.gate.log.Error("gotsem: too many slots wait to be released, more are left to lapse", "waiting", len(b.pending), "dropped", b.dropped, "id", d.id, "lapses_within", b.gate.ttl)
	b.complained, b.dropped = now, 0
}

// look has the goroutine look at what is due. It starts it if there is none, and wakes
// it only if it would sleep past now: with thousands added at once, one nudge is
// enough. mu is held.
func (b *backlog) look(now time.Duration) {
	switch {
	case !b.running:
		b.running, b.done = true, make(chan struct{})
		b.wakes = now
		go b.run(b.done)
	case now < b.wakes:
		b.wakes = now
		b.wake()
	}
}

// wake has the goroutine look, unless it is about to.
func (b *backlog) wake() {
	select {
	case b.nudge <- struct{}{}:
	default:
	}
}

// forget takes d out. A worker may have it, so that it is not in the queue; and the
// slot id may have been added again since, so that another is pending for it. mu is
// held.
func (b *backlog) forget(d *pendingRelease) {
	if b.pending[d.slotOf] == d {
		delete(b.pending, d.slotOf)
	}
	if d.index >= 0 {
		heap.Remove(&b.queue, d.index)
	}
}

// takeOver returns a lease of id and that weight whose release is pending, and forgets
// the release: whoever takes the lease over goes on with its slot.
func (b *backlog) takeOver(id string, weight int, now time.Duration) *Lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.pending {
		if l := d.lease; l != nil && d.id == id && l.weight == weight && now < time.Duration(l.trust.Load()) {
			b.forget(d)
			return l
		}
	}
	return nil
}

// run starts workers for what is due, and sleeps until more is. It ends when nothing is
// pending: a semaphore that is not used has no goroutine here.
func (b *backlog) run(done chan struct{}) {
	defer close(done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait, over := b.next()
		if over {
			return
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-b.nudge:
		}
	}
}

// next sees that what is due is released, and returns how long until more is. It starts
// as many workers as there may be something for: the first entries of the heap are not
// in order, but what is due among them is a lower bound of what is due in all, and a
// worker that finds nothing ends.
func (b *backlog) next() (wait time.Duration, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.gate.now()
	b.hold(now)
	due := 0
	for due < b.queue.Len() && due < backlogWorkers && b.queue[due].due <= now { // not in order, and yet a lower bound
		due++
	}
	for ; due > 0 && b.workers < backlogWorkers; due-- {
		b.workers++
		go b.work()
	}
	if b.queue.Len() == 0 && b.workers == 0 {
		b.running = false
		return 0, true
	}
	wait = time.Hour // a worker that ends nudges
	if b.queue.Len() > 0 && b.workers < backlogWorkers {
		wait = max(b.queue[0].due-now, time.Millisecond)
	}
	b.wakes = now + wait
	return wait, false
}

// hold forgets what has lapsed, and puts off what is due while its server is known to
// be away: all would be told the same. mu is held.
func (b *backlog) hold(now time.Duration) {
	for b.queue.Len() > 0 {
		d := b.queue[0]
		switch {
		case d.due > now:
			return
		case d.until <= now:
			b.forget(d)
		case !b.closing && b.gate.away(d.id):
			d.due = now + backlogRetry
			heap.Fix(&b.queue, 0)
		default:
			return
		}
	}
}

// work releases what is due, one after the other, until nothing is. Many do so at once,
// since each waits for its answer: the store sends what they release in shared batches.
// From the sending on, a release's lease cannot be taken over any more.
func (b *backlog) work() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		now := b.gate.now()
		b.hold(now)
		if b.queue.Len() == 0 || b.queue[0].due > now {
			break
		}
		d := heap.Pop(&b.queue).(*pendingRelease)
		lease := d.lease
		d.lease = nil // the store may hear of the release from now on
		ctx := b.ctx
		b.mu.Unlock()
		freed, err := b.send(ctx, d)
		b.mu.Lock()
		b.sent(d, lease, freed, err)
	}
	if b.workers--; b.workers == backlogWorkers-1 || b.queue.Len() == 0 || b.queue[0].due < b.wakes {
		b.wakes = 0 // it looks in a moment
		b.wake()
	}
}

// send releases one slot, whatever the breaker says: hold has asked it already.
func (b *backlog) send(ctx context.Context, d *pendingRelease) (freed bool, err error) {
	g := b.gate
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	return g.send(ctx, &store.Release{ID: d.id, SlotID: d.slotID, Grace: g.grace})
}

// sent says when d is due again, or forgets it.
//
//   - It failed: again in a while. If it never left, the lease may be taken over again.
//     After Close nothing is tried twice.
//   - It was in doubt, and nothing was there to release: what it undoes may yet arrive.
//   - Else it is done: the slot was released, or was not held.
//
// mu is held.
func (b *backlog) sent(d *pendingRelease, lease *Lease, freed bool, err error) {
	now := b.gate.now()
	switch {
	case b.pending[d.slotOf] != d: // there is another of that slot id
		return
	case err != nil && b.closed:
		b.gate.stats.leftToLapse.Add(1)
		b.forget(d)
		return
	case err != nil:
		if d.due = now + backlogRetry; !mayHaveArrived(err) {
			d.lease = lease
		}
		if b.closing && b.gate.away(d.id) {
			return // it stays pending, for Close to tell
		}
	case d.inDoubt && !freed && !b.closing && len(b.pending) <= backlogRepeats:
		d.due, d.inDoubt = now+max(backlogAgain, b.gate.timeout), false
	default:
		b.forget(d)
		return
	}
	heap.Push(&b.queue, d)
}

// close releases what is pending, for as long as ctx allows, and returns how much is
// left. It then cuts off what is under way, and waits for its end as long as whole
// allows. What is added later, by calls that were under way, is tried once.
func (b *backlog) close(ctx, whole context.Context) int {
	b.mu.Lock()
	b.closing = true
	for _, d := range b.queue {
		d.due = 0 // now or never
	}
	if b.running {
		b.look(b.gate.now())
	}
	var running bool
	var done chan struct{}
	for running, done = b.running, b.done; running && ctx.Err() == nil; running, done = b.running, b.done {
		b.mu.Unlock()
		select {
		case <-done: // calls that were under way may have added something since
		case <-ctx.Done():
		}
		b.mu.Lock()
	}
	left := len(b.pending)
	b.gate.stats.leftToLapse.Add(uint64(left))
	b.closed = true
	clear(b.pending) // they lapse
	b.queue = nil
	stop := b.cancel
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if b.running {
		b.wake()
	}
	b.mu.Unlock()
	stop()
	if running && left > 0 { // the goroutine ends when what is under way does
		select {
		case <-done:
		case <-whole.Done():
		}
	}
	return left
}
