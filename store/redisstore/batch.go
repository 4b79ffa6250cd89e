package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// batch is what one round trip carries. Batches are used again.
type batch struct {
	ops    []*op
	room   int           // for more
	first  time.Time     // when the first of the ops is due
	due    time.Time     // when it ends at the latest, which is when the last of them is
	leader *op           // who runs it; nil: a goroutine of the batcher
	done   chan struct{} // closed when it is answered; nil: nobody but the leader waits for that
	ctx    batchContext

	byLeader bool // running on the goroutine of its leader
	givenUp  bool // it did not end in time, and its callers were told
	keeps    bool // it was given up, and still counts towards the limit
}

// batches are those that are not in use.
var batches = sync.Pool{New: func() any { return new(batch) }}

// recycle has a batch used again, when its ops are answered and nobody runs it any more.
// One whose ctx has ended is not: what was derived from that may still look at it.
func (one *batch) recycle() {
	if one.ctx.ended.Load() {
		return
	}
	clear(one.ops)
	one.ops, one.leader, one.done, one.byLeader = one.ops[:0], nil, nil, false
	one.ctx.values = nil
	batches.Put(one)
}

// dueSpread is by how much the operations of a batch differ in when they are due.
const dueSpread = 10 * time.Millisecond

// fits reports whether what is due then may go with the batch: no two that go together
// are due more than dueSpread apart, since all of them wait as long as the batch does.
func (one *batch) fits(due time.Time) bool {
	return due.Sub(one.first) <= dueSpread && one.due.Sub(due) <= dueSpread
}

// turnOf returns what tells o that it is answered, or that it is to lead its batch. The
// first that may lead is told by its own channel, all others by one that is closed. mu of
// the batcher is held.
func (one *batch) turnOf(o *op, mayLead bool) <-chan struct{} {
	if mayLead && one.leader == nil {
		if o.turn == nil {
			o.turn = make(chan struct{}, 1)
		}
		one.leader = o
		return o.turn
	}
	if one.done == nil {
		one.done = make(chan struct{})
	}
	return one.done
}

// wake wakes all who wait for the batch, but for self.
func (one *batch) wake(self *op) {
	if o := one.leader; o != nil && o != self && !o.abandoned {
		o.turn <- struct{}{} // there is room: it is told once
	}
	if one.done != nil {
		close(one.done)
	}
}

// batchContext is the ctx of a batch. It ends when the batch is due, and costs no timer:
// the batcher's watch ends it.
type batchContext struct {
	values context.Context // of the only caller; nil: of none
	due    time.Time
	over   chan struct{} // closed at the end; if that does not come, the next batch uses it again
	ended  atomic.Bool
}

func (c *batchContext) begin(due time.Time) {
	c.due = due
	if c.over == nil {
		c.over = make(chan struct{})
	}
}

// end ends the ctx. mu of the batcher is held.
func (c *batchContext) end() {
	if c.ended.CompareAndSwap(false, true) {
		close(c.over)
	}
}

func (c *batchContext) Deadline() (time.Time, bool) { return c.due, true }
func (c *batchContext) Done() <-chan struct{}       { return c.over }

func (c *batchContext) Err() error {
	if c.ended.Load() {
		return context.DeadlineExceeded
	}
	return nil
}

func (c *batchContext) Value(key any) any {
	if c.values == nil {
		return nil
	}
	return c.values.Value(key)
}
