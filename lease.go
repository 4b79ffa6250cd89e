package gotsem

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// Lease is slots held for a time. It is renewed until it is released. It is
// believed only until the sending of its last good renewal + TTL - margin, by
// this process's monotonic clock; the store, whose count began later, keeps the
// slots a little longer than that.
type Lease struct {
	sem    *Semaphore
	id     string
	slotID string
	weight int
	limit  int // that was applied when it was granted
	fence  uint64
	parent context.Context // for its values
	open   bool            // admitted without the store, by Outage Open

	since time.Duration // when it was asked for; 0: not known

	trust atomic.Int64 // believed until then, since sem.start; forever while the outage policy keeps it
	state atomic.Uint32
	why   atomic.Pointer[leaseLost] // set before the state becomes lost

	mu  sync.Mutex
	ctx *leaseContext // made when asked for

	// The renewer's.
	prev, next *Lease
	due        time.Duration // when to renew
	again      time.Duration // not before, after a renewal that failed
	kept       bool          // in one of the renewer's lists
	brief      bool          // believed by word of its grant, and not renewed yet
	renewing   chan struct{} // a renewal is under way; closed when it is answered
	pending    bool          // to be given back once it is
	local      atomic.Bool   // admitted or kept in an outage, without the store
	inDoubt    atomic.Bool   // the last renewal was not answered: it may reach the store yet
}

// The states of a lease. It goes from held to one of the others, once.
const (
	held uint32 = iota
	released
	lost
	ended // by Close
)

// margin is how much earlier than the store's a lease's own time ends: for two
// clocks whose rates differ by a thousandth, and for the time from looking at
// the clock to acting.
func margin(ttl time.Duration) time.Duration { return max(50*time.Millisecond, ttl/1000) }

// lease makes a lease from a grant that was asked for at sent.
func (s *Semaphore) lease(ctx context.Context, r *store.Request, d store.Decision, sent time.Duration) *Lease {
	l := &Lease{sem: s, id: r.ID, slotID: r.SlotID, weight: r.Weight, limit: d.Limit, fence: d.Fence, parent: ctx, since: sent}
	l.trust.Store(int64(sent + s.opt.TTL - margin(s.opt.TTL)))
	return l
}

// keep has a new lease renewed.
func (s *Semaphore) keep(l *Lease, now time.Duration) {
	s.stats.granted.Add(1)
	s.stats.held.Add(1)
	if !s.renewer.add(l, now) { // closed meanwhile
		l.end(ended)
		s.renewer.giveBack(l)
	}
}

// forever is the trust of a lease that does not depend on the store for now.
const forever = time.Duration(1<<63 - 1)

// openLease is what Outage Open admits with.
func (s *Semaphore) openLease(ctx context.Context, r *store.Request) *Lease {
	l := &Lease{sem: s, id: r.ID, slotID: sentinel, weight: r.Weight, parent: ctx, open: true}
	l.trust.Store(int64(forever))
	s.stats.held.Add(1)
	s.opens.add(l)
	return l
}

// trusted reports whether l may still be believed.
func (l *Lease) trusted(now time.Duration) bool {
	return l.state.Load() == held && now < time.Duration(l.trust.Load())
}

// SlotID returns the slot id that the lease has in the store. Whoever knows it
// can take the lease away: it does not belong into URLs or logs.
func (l *Lease) SlotID() string { return l.slotID }

// Weight returns how many slots the lease holds.
func (l *Lease) Weight() int { return l.weight }

// Fence returns a number that is higher than that of every earlier lease of the
// id. A resource that remembers the highest it has seen, and refuses lower ones,
// is safe from a holder that was suspended and does not know that its lease is
// over. It is 0 if the store was not asked (FailedOpen).
func (l *Lease) Fence() uint64 { return l.fence }

// FailedOpen reports that the lease was admitted without the store, by the outage
// policy Open, and holds no slot.
func (l *Lease) FailedOpen() bool { return l.open }

// Expires returns until when the lease may be believed if it is not renewed. It
// moves on with each renewal. It is the zero time for a lease that an outage
// policy admitted or keeps.
func (l *Lease) Expires() time.Time {
	trust := time.Duration(l.trust.Load())
	if trust == forever {
		return time.Time{}
	}
	return l.sem.start.Add(trust)
}

// Context returns a context that ends when the lease does: with a cause that is
// ErrLeaseLost and says why when it was revoked or could not be renewed in time, with
// ErrClosed when the semaphore was closed, with context.Canceled when it was released.
//
// It has the values of the context that the lease was acquired with, but not its
// end: that one often bounds no more than the waiting. Its Err and Done look at
// the clock, so that the first code that runs after the process or the machine
// was suspended sees the loss. A context that is derived from it (WithCancel,
// WithTimeout, WithValue and those of a library) is told by a goroutine, and sees it
// some milliseconds later: code that must not act after a loss asks this one, and hands
// Fence to the resource.
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		inner, cancel := context.WithCancelCause(context.WithoutCancel(l.parent))
		l.ctx = &leaseContext{Context: inner, cancel: cancel, lease: l}
		if l.state.Load() != held {
			cancel(l.cause())
		}
	}
	return l.ctx
}

// leaseLost is the ErrLeaseLost of one lease.
type leaseLost struct{ id, why string }

func (e *leaseLost) Error() string        { return fmt.Sprintf("gotsem: %q: lease lost: %s", e.id, e.why) }
func (e *leaseLost) Is(target error) bool { return target == ErrLeaseLost }

// cause is why a lease that is not held any more ended.
func (l *Lease) cause() error {
	switch l.state.Load() {
	case released:
		return context.Canceled
	case ended:
		return ErrClosed
	}
	return l.why.Load()
}

// leaseContext is a context that ends with a lease, and looks at the clock.
type leaseContext struct {
	context.Context
	cancel context.CancelCauseFunc
	lease  *Lease
}

func (c *leaseContext) Err() error {
	c.look()
	return c.Context.Err()
}

func (c *leaseContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

// Value looks at the clock too, since context.Cause finds what it answers by a Value.
func (c *leaseContext) Value(key any) any {
	c.look()
	return c.Context.Value(key)
}

// look ends the context if the lease is over: whoever ends that may be between the one
// and the other.
func (c *leaseContext) look() {
	if c.lease.look(); c.lease.state.Load() != held {
		c.cancel(c.lease.cause())
	}
}

// look ends the lease if its time is over.
func (l *Lease) look() {
	if l.state.Load() == held && l.sem.now() >= time.Duration(l.trust.Load()) {
		l.over()
	}
}

// over is what becomes of a lease whose time is over: lost, unless the outage
// policy keeps it.
func (l *Lease) over() {
	if !l.sem.local.keep(l) {
		l.lose(expired)
	}
}

// end moves the lease from held to state, and ends its context. It reports
// whether it was held.
func (l *Lease) end(state uint32) bool {
	if !l.state.CompareAndSwap(held, state) {
		return false
	}
	l.sem.stats.held.Add(-1)
	l.mu.Lock()
	if l.ctx != nil {
		l.ctx.cancel(l.cause())
	}
	l.mu.Unlock()
	return true
}

// lossReason is why a lease was lost.
type lossReason uint8

const (
	expired      lossReason = iota // no renewal was answered in time
	restoredLate                   // one was, but after its time
	revoked                        // by Revoke or Clear
	forgotten                      // by the store
)

func (w lossReason) String() string {
	switch w {
	case restoredLate:
		return "the store put it back after its time was over"
	case revoked:
		return "it was revoked"
	case forgotten:
		return "the store does not know it any more"
	}
	return "it could not be renewed in time"
}

// lose ends a lease that is not ours any more. Its slots are given back all the
// same: we may be wrong, and a slot id that holds nothing harms nobody.
func (l *Lease) lose(why lossReason) {
	l.why.CompareAndSwap(nil, &leaseLost{l.id, why.String()})
	if !l.end(lost) {
		return
	}
	l.sem.local.ended(l)
	l.sem.stats.lost.Add(1)
	switch why {
	case revoked:
		l.sem.stats.revoked.Add(1)
	case expired, restoredLate:
		l.sem.stats.expired.Add(1)
	}
	l.sem.renewer.giveBack(l)
	l.sem.opt.Logger.Warn("gotsem: lease lost", "id", l.id, "why", why.String())
}

// detached is ctx without its end.
func detached(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// Release gives the slots back; the head of the line has them at once. Releasing
// twice, or what was lost, is a no-op, so that a deferred Release is always safe.
//
// It does not end early with ctx, whose values alone it takes, and waits for the
// store at most StoreTimeout, a renewal that is under way included. An error says that the store did not answer: the
// release is then tried again in the background, and the slots lapse within one
// TTL at the latest.
func (l *Lease) Release(ctx context.Context) error {
	if !l.end(released) {
		return nil
	}
	s := l.sem
	if l.open {
		s.opens.remove(l)
		return nil
	}
	// A renewal that is under way must not overtake the release. Waiting for it takes
	// of the same budget.
	budget := s.opt.StoreTimeout
	if renewing := s.renewer.remove(l); renewing != nil {
		if budget = s.await(renewing, budget); budget <= 0 {
			s.local.ended(l)
			s.stats.released.Add(1)
			s.renewer.giveBack(l)
			if s.opt.AsyncRelease {
				return nil
			}
			return s.late(&unavailable{id: l.id, cause: errRenewing})
		}
	}
	if l.since > 0 && s.drains.wanted.Load() {
		now := s.now()
		s.drains.released(l.id, now-l.since, now)
	}
	inStore := !l.local.Load()
	s.local.ended(l)
	s.stats.released.Add(1)
	r := s.releases.Get().(*store.Release)
	defer s.releases.Put(r)
	*r = store.Release{ID: l.id, SlotID: l.slotID, Grace: s.opt.Grace, Budget: budget}
	// Neither must one that was given up: then it is given back twice.
	inDoubt := l.inDoubt.Load()
	if s.opt.AsyncRelease {
		s.gate.handOver(r)
		if inDoubt {
			s.gate.backlog.add(l.id, l.slotID, true)
		}
		return nil
	}
	if _, err := s.gate.release(detached(ctx), r); err != nil {
		d := &pendingRelease{id: l.id, slotID: l.slotID, inDoubt: inDoubt}
		if inStore && !asked(err) {
			d.lease = l
		}
		s.gate.backlog.put(d)
		return s.late(err)
	}
	if inDoubt {
		s.gate.backlog.add(l.id, l.slotID, true)
	}
	return nil
}

var errRenewing = errors.New("a renewal that was under way was not answered in time")

// await waits for a renewal that is under way, for budget at most, and returns what is
// left of that. Who hands the release over does not wait.
func (s *Semaphore) await(renewing <-chan struct{}, budget time.Duration) (left time.Duration) {
	if s.opt.AsyncRelease {
		select {
		case <-renewing:
			return budget
		default:
			return 0
		}
	}
	began := s.now()
	timer := time.NewTimer(budget)
	defer timer.Stop()
	select {
	case <-renewing:
		return budget - (s.now() - began)
	case <-timer.C:
		return 0
	}
}

// late is the error of a release that the store has not answered.
func (s *Semaphore) late(err error) error {
	return fmt.Errorf("%w; it is released in the background, and lapses within %v at the latest", err, s.opt.TTL)
}
