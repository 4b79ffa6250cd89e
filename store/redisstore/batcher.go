package redisstore

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// batcher groups concurrent operations into one round trip. A caller runs its own batch,
// on its own goroutine, while fewer than the limit are running. Otherwise it joins the
// batch that is forming, and whoever completes a batch has the next one run, by one of
// those who wait for it. So nothing waits for a timer, one caller alone pays for nothing,
// and a thousand share their round trips.
//
// Under contention a completed batch wakes many callers at once. The first of them yields
// before it sends, so that the others join its batch instead of forming the next.
//
// The life of an operation:
//
//	queued ──► leading ──► sent ──► done      its caller runs the batch
//	   │                    ▲ │       ▲
//	   ├────────────────────┘ │       │       another caller does, or a goroutine
//	   │                      └► late │       its batch is left behind: it stays so
//	   └──────────────────────────────┘       its time was over before it was sent
//
// At any stage but the last two its caller may abandon it, when its ctx ends. An acquire
// that was sent is in doubt then.
//
// The life of a batch:
//
//	forming (waiting) ──► running ──► completed, and used again
//	                         └──────► given up, completed by nobody's leave: see detached.go
//
// The batcher knows neither Redis nor a store. All that waits in one waits for one
// server: see nodes.go.
type batcher struct {
	exec     func(ctx context.Context, ops []*op) // sends operations, and answers them
	ctxBound bool                                 // exec ends with its ctx, for certain
	free     func(*op)                            // has an op used again that nobody waits for
	givenUp  func()                               // hears that a batch was
	inDoubt  *inDoubt                             // acquires that may be carried out yet

	mu        sync.Mutex
	waiting   []*batch // those that have not gone; operations join the last
	running   []*batch // and those given up that have not ended
	flying    int      // how many count towards the limit: not those given up
	gathering bool     // one of flying has not gone yet: it is the first of waiting
	crowd     bool     // the last batch that ended was not the only one, or not for one caller
	far       bool     // the last batch took long
	left      int      // how many were given up and have not ended

	arrived atomic.Int32 // operations waiting, roughly
	hurried atomic.Int64 // until then, Unix ns, batches do not wait for company

	watch *time.Timer // looks for what is due
	armed time.Time   // when it will; zero: it will not
}

const (
	batchRoom      = 256 // of a batch, which takes Redis a millisecond at most
	roomPlain      = 1   // of that, for what is done by the plain script
	roomFull       = 2   // for any other operation
	maxInFlight    = 3   // batches running
	maxInFlightFar = 8   // where one takes longer than farBatch
	farBatch       = time.Millisecond

	gatherEnough = 64                     // operations, and a batch goes
	gatherMax    = 2 * time.Millisecond   // that it lets others run before it goes
	gatherAgain  = 100 * time.Millisecond // after that took longer, batches go at once for so long
	gatherYields = 8                      // without a new caller, and the batch goes

)

// processStart is what times are reckoned from: time.Now reads two clocks.
var processStart = time.Now()

// dueIn is when a budget that begins now is over.
func dueIn(budget time.Duration) time.Time {
	return processStart.Add(time.Since(processStart) + budget)
}

// do has o carried out, and returns when it is answered or its time is over. An error is
// about the batch; what Redis answered is in o. left reports that the caller has left o
// under way: it must not touch it any more.
func (b *batcher) do(ctx context.Context, o *op) (left bool, err error) {
	done := ctx.Done()
	o.due = dueIn(o.budget)
	if d, ok := ctx.Deadline(); ok && d.Before(o.due) {
		if done == nil { // the only way to tell it that its time is over
			bounded, cancel := context.WithDeadline(ctx, d)
			defer cancel()
			ctx, done = bounded, bounded.Done()
		}
		o.due = d
	}
	if o.verb.gives() && b.inDoubt.any() {
		if err := b.inDoubt.wait(ctx, o); err != nil {
			return false, err
		}
	}
	// A caller runs a batch itself only where nothing can keep it beyond its time.
	mayLead := b.ctxBound && done == nil
	b.mu.Lock()
	// Where there is a place, nothing waits but for what another is about to take along.
	if b.flying < b.limit() && len(b.waiting) == 0 && (mayLead || !b.crowd) {
		b.flying++
		one := b.enqueue(o)
		one.ctx.values = ctx
		if mayLead {
			one.leader = o
			b.lead(one, b.crowd)
			return false, o.err
		}
		turn := one.turnOf(o, false)
		b.begin(b.pop(), false)
		b.mu.Unlock()
		go b.run(one, nil)
		return b.await(ctx, o, turn)
	}
	one := b.enqueue(o)
	turn := one.turnOf(o, mayLead)
	b.next()
	b.mu.Unlock()
	if left, err := b.await(ctx, o, turn); left || o.stage != leading {
		return left, err
	}
	b.mu.Lock()
	b.lead(one, true)
	return false, o.err
}

// submit has o carried out without waiting for it. o.async hears how it ended.
func (b *batcher) submit(o *op) {
	if o.verb.gives() && b.inDoubt.any() {
		go func() {
			if err := b.inDoubt.wait(context.Background(), o); err != nil {
				o.async(o.id, o.slot, err)
				return
			}
			b.add(o)
		}()
		return
	}
	b.add(o)
}

func (b *batcher) add(o *op) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.enqueue(o)
	b.next()
}

// await waits until o is answered, or is to lead its batch, or its time is over.
func (b *batcher) await(ctx context.Context, o *op, turn <-chan struct{}) (left bool, err error) {
	if done := ctx.Done(); done == nil {
		<-turn
	} else {
		select {
		case <-turn:
		case <-done:
			if b.abandon(o, turn) {
				return true, ctx.Err()
			}
		}
	}
	switch o.stage {
	case late:
		return true, errTimeout
	case leading:
		return false, nil
	}
	return false, o.err
}

// enqueue adds o to the last of the batches that wait, or to a new one. mu is held.
func (b *batcher) enqueue(o *op) *batch {
	room := roomFull * (1 + len(o.also))
	if o.verb.plain() {
		room = roomPlain
	}
	if o.due.IsZero() {
		o.due = dueIn(o.budget)
	}
	n := len(b.waiting)
	if n == 0 || b.waiting[n-1].room < room || !b.waiting[n-1].fits(o.due) {
		one := batches.Get().(*batch)
		one.room, one.first, one.due = batchRoom, o.due, o.due
		b.waiting = append(b.waiting, one)
		n++
		b.arm(one.due)
	}
	one := b.waiting[n-1]
	if o.due.After(one.due) {
		one.due = o.due
	} else if o.due.Before(one.first) {
		one.first = o.due
	}
	one.ops = append(one.ops, o)
	one.room -= room
	b.arrived.Add(1)
	return one
}

// limit is how many batches may be running. mu is held.
func (b *batcher) limit() int {
	if b.far {
		return maxInFlightFar
	}
	return maxInFlight
}

// gather lets those run who were just woken, for as long as they come here. Where
// others keep the processors busy, letting them run costs more than it gains, and it is
// not tried again for a while.
func (b *batcher) gather() {
	began := time.Now()
	if began.UnixNano() < b.hurried.Load() {
		return
	}
	for n, still := b.arrived.Load(), 0; n < gatherEnough && still < gatherYields; {
		runtime.Gosched()
		if now := time.Now(); now.Sub(began) > gatherMax {
			b.hurried.Store(now.Add(gatherAgain).UnixNano())
			return
		}
		if m := b.arrived.Load(); m != n {
			n, still = m, 0
		} else {
			still++
		}
	}
}

// lead runs the first of the batches that wait, for its leader. mu is held, and given
// back.
func (b *batcher) lead(one *batch, gather bool) {
	if gather && len(one.ops) < gatherEnough {
		b.gathering = true
		b.mu.Unlock()
		b.gather()
		b.mu.Lock()
	}
	b.gathering = false
	b.begin(b.pop(), true)
	b.next()
	b.mu.Unlock()
	b.run(one, one.leader)
}

// next has the next batch run, if one waits and there is a place: by its leader, or by a
// goroutine of the batcher. mu is held.
func (b *batcher) next() {
	if len(b.waiting) == 0 || b.flying >= b.limit() || b.gathering {
		return
	}
	b.flying++
	b.gathering = true // until it runs
	one := b.waiting[0]
	// Who leads waits as long as the batch does.
	if o := one.leader; o != nil && one.due.Sub(o.due) <= dueSpread {
		o.stage = leading
		o.turn <- struct{}{}
		return
	}
	go b.runDetached()
}

// pop takes the first of the batches that wait, without the operations that were
// abandoned. mu is held.
func (b *batcher) pop() *batch {
	one := b.waiting[0]
	b.drop(0)
	stay := one.ops[:0]
	for _, o := range one.ops {
		if o.abandoned {
			continue
		}
		o.stage = sent
		stay = append(stay, o)
	}
	clear(one.ops[len(stay):])
	one.ops = stay
	return one
}

// drop takes the i-th of the batches that wait off the list. mu is held.
func (b *batcher) drop(i int) {
	b.arrived.Add(int32(-len(b.waiting[i].ops)))
	rest := i + copy(b.waiting[i:], b.waiting[i+1:])
	b.waiting[rest] = nil
	b.waiting = b.waiting[:rest]
}

// begin notes that a batch is running. mu is held.
func (b *batcher) begin(one *batch, byLeader bool) {
	one.byLeader = byLeader
	one.ctx.begin(one.due)
	b.running = append(b.running, one)
	b.arm(one.due)
}

// run has a batch carried out, and completes it. self is the op of the caller that runs
// it, if one does.
func (b *batcher) run(one *batch, self *op) {
	if len(one.ops) > 1 {
		one.ctx.values = nil
	}
	began := time.Now()
	b.exec(&one.ctx, one.ops) // each op has its own error
	b.complete(one, self, time.Since(began))
}

// complete ends a batch, has the next one run, and gives the answers to those who wait.
func (b *batcher) complete(one *batch, self *op, took time.Duration) {
	b.mu.Lock()
	for i, other := range b.running {
		if other == one {
			last := len(b.running) - 1
			b.running[i], b.running[last] = b.running[last], nil
			b.running = b.running[:last]
			break
		}
	}
	b.markDone(one)
	if one.givenUp { // its callers have been told
		b.left--
		if one.keeps {
			b.flying--
			b.next()
		}
		b.mu.Unlock()
		return
	}
	b.far = took > farBatch
	b.crowd = b.flying > 1 || len(one.ops) > 1
	b.flying--
	b.next()
	b.mu.Unlock()
	b.tell(one, self)
}

// markDone notes that what was sent has ended. mu is held.
func (b *batcher) markDone(one *batch) {
	for _, o := range one.ops {
		if o.verb.takes() && (o.abandoned || o.stage == late) {
			b.inDoubt.end(o)
		}
		if o.stage != late { // else its caller has looked, and does not hold mu
			o.stage = done
		}
	}
}

// tell has those who ride in a batch hear that they are answered, but for self, and the
// batch used again.
func (b *batcher) tell(one *batch, self *op) {
	for _, o := range one.ops {
		if o.async != nil {
			o.async(o.id, o.slot, o.err)
			b.free(o)
		}
	}
	one.wake(self)
	one.recycle()
}
