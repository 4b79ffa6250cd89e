package redisstore

import (
	"sync"
	"sync/atomic"
	"time"
)

// What is sent can arrive late: after it was sent again over another connection, and
// answered, and given back. A packet that was lost is repeated by the kernel, also when
// the connection is closed. So whatever takes says until when it may be carried out, by
// the server's clock (see clocks.latest), and does nothing after that; and what was sent
// twice is given back twice, the second time when the first sending is too late.

// asking is a slot id at an id: a lease of several ids has the same at all of them.
type asking struct{ id, slot string }

// resent remembers the slot ids that were asked for by more than one sending.
type resent struct {
	n     atomic.Int64 // how many
	mu    sync.Mutex
	prune int                  // it is looked through at this length
	due   map[asking]time.Time // when its caller leaves, and no sending of it is carried out any more
}

// slack is by how much the server's clock may be behind what is thought of it.
const slack = 20 * time.Millisecond

func (r *resent) add(a asking, due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.due == nil {
		r.due = make(map[asking]time.Time)
	}
	if now := time.Now(); len(r.due) >= r.prune {
		for a, due := range r.due { // those that nobody gives back, such as refused ones
			if due.Before(now) {
				delete(r.due, a)
			}
		}
		r.prune = 2*len(r.due) + 64
	}
	r.due[a] = due
	r.n.Store(int64(len(r.due)))
}

// released has again called when no sending of that asking is carried out any more, if there
// may be one under way.
func (r *resent) released(a asking, again func()) {
	if r.n.Load() == 0 {
		return
	}
	r.mu.Lock()
	due, ok := r.due[a]
	delete(r.due, a)
	r.n.Store(int64(len(r.due)))
	r.mu.Unlock()
	if left := time.Until(due); ok && left > -slack {
		time.AfterFunc(left+slack, again)
	}
}
