package door

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

// Held is what a request that was let in holds, and its context: the server's,
// which ends besides when a lease is lost.
//
// The slot is released when nobody has a share in it any more. The handler has
// one until it returns; Keep takes that one over, or makes another; a connection or a
// stream may have one until it is closed.
type Held struct {
	context.Context
	door  *Door
	lease *gotsem.Lease
	local *gotsem.Lease // nil where there is none
	outer *Held         // of a door around this one
	drain *drain
	more  []*drain // of the further ids
	began time.Duration

	shares  atomic.Int32
	handler atomic.Bool // the handler's share is the handler's still
	ending  atomic.Pointer[ending]
	mu      sync.Mutex // taken to make ending
}

// ending is the context that ends with the lease. Most handlers never look, so it
// is made when one does.
type ending struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	stops  []func() bool
}

// heldKey finds a Held among the values of a context.
type heldKey struct{}

func (d *Door) hold(ctx context.Context, a Asker, lease, local *gotsem.Lease) *Held {
	h := &Held{Context: ctx, door: d, lease: lease, local: local, outer: Of(ctx), began: d.Now()}
	d.begin(h, a)
	h.shares.Store(1)
	h.handler.Store(true)
	return h
}

// Returned ends the share of the handler, unless Keep took that over.
func (h *Held) Returned() {
	if h.handler.CompareAndSwap(true, false) {
		h.Drop()
	}
}

// Keep takes over, or makes another, share in the slots of the request whose context ctx
// is made from, and in those of the doors around it. Release gives it up, once.
func Keep(ctx context.Context) (release func()) {
	h := Of(ctx)
	if h == nil {
		return func() {}
	}
	return sync.OnceFunc(h.keep())
}

// keep returns what gives up a share in each of the slots of h and those around it.
func (h *Held) keep() func() {
	mine := h.handler.CompareAndSwap(true, false) || h.Share()
	var outer func()
	if h.outer != nil {
		outer = h.outer.keep()
	}
	return func() {
		if mine {
			h.Drop()
		}
		if outer != nil {
			outer()
		}
	}
}

// Share makes another share, for Drop to end. It returns false if the slot was released.
func (h *Held) Share() bool {
	for {
		n := h.shares.Load()
		if n == 0 {
			return false
		}
		if h.shares.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Drop ends a share, and with the last one the slot.
func (h *Held) Drop() {
	if h.shares.Add(-1) > 0 {
		return
	}
	if e := h.ending.Load(); e != nil {
		for _, stop := range e.stops {
			stop()
		}
	}
	if h.local != nil {
		release((*values)(h), h.local)
	}
	release((*values)(h), h.lease)
	h.door.end(h, h.door.Now())
}

// values is the context of a Held without its end, for giving the slot back. It is
// h itself, since each request would pay for another.
type values Held

func (v *values) Deadline() (time.Time, bool) { return time.Time{}, false }
func (v *values) Done() <-chan struct{}       { return nil }
func (v *values) Err() error                  { return nil }
func (v *values) Value(key any) any           { return v.Context.Value(key) }

// Lease is the fleet's lease.
func (h *Held) Lease() *gotsem.Lease { return h.lease }

// Of returns what the request whose context ctx is, or is made from, holds; nil: nothing.
func Of(ctx context.Context) *Held {
	h, _ := ctx.Value(heldKey{}).(*Held)
	return h
}

// Value implements context.Context.
func (h *Held) Value(key any) any {
	if key == (heldKey{}) {
		return h
	}
	if e := h.ending.Load(); e != nil {
		return e.ctx.Value(key) // so that contexts made from h find what ends it
	}
	return h.Context.Value(key)
}

// Done implements context.Context.
func (h *Held) Done() <-chan struct{} { return h.end().ctx.Done() }

// Err implements context.Context. It sees the loss of a lease at once, also after
// a suspend of the process.
func (h *Held) Err() error {
	for _, l := range [...]*gotsem.Lease{h.lease, h.local} {
		if cause := Loss(l); cause != nil {
			e := h.end()
			e.cancel(cause)
			return e.ctx.Err()
		}
	}
	if e := h.ending.Load(); e != nil {
		return e.ctx.Err()
	}
	return h.Context.Err()
}

func (h *Held) end() *ending {
	if e := h.ending.Load(); e != nil {
		return e
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.ending.Load(); e != nil {
		return e
	}
	e := new(ending)
	e.ctx, e.cancel = context.WithCancelCause(h.Context)
	if h.shares.Load() > 0 {
		for _, l := range [...]*gotsem.Lease{h.lease, h.local} {
			if l == nil {
				continue
			}
			e.stops = append(e.stops, context.AfterFunc(l.Context(), func() {
				if cause := Loss(l); cause != nil {
					e.cancel(cause)
				}
			}))
		}
	}
	h.ending.Store(e)
	return e
}

// By reports whether h is held at door d, and not at another around it.
func (h *Held) By(d *Door) bool { return h.door == d }
