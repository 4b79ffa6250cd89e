package gotsem

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// Lease is slots held for a time. It is renewed until it is released. It is
// believed only until the sending of its last good renewal + TTL - margin, by
// this process's monotonic clock; the store, whose count began later, keeps the
// slots a little longer than that.
//
// Three things about a lease change, each by itself. Its state is whether it is held:
//
//	        Release
//	       ┌─────────▶ released   its context ends with context.Canceled
//	held ──┼─────────▶ lost       ErrLeaseLost: revoked, forgotten or not renewed
//	       └─────────▶ ended      ErrClosed: Close
//	        Close
//
// Its basis is who vouches for it:
//
//	wake-up            Try, Acquire                 Outage Local       Outage Open
//	   │                    │                            │                  │
//	   ▼        renewed     ▼   time over, store away,   ▼                  ▼
//	provisional ────────▶ store ────────────────────▶ local               open
//	   │                    ▲     within the share       │
//	   │                    └────────────────────────────┤ registered: the store
//	   └─────────────────── the same ───────────────────▶┘ knows it now
//
// Its renewal is idle, in flight, or in flight and then to be released (renewal).
type Lease struct {
	sem    *Semaphore
	id     string
	slotID string
	weight int
	limit  int // that was applied when it was granted
	fence  uint64
	parent context.Context // for its values
	part   bool            // of a call for several ids: counted as one with the others

	with atomic.Pointer[levels] // the leases of all ids of its call; nil: it has one, or is not all of it yet

	since time.Duration // when it was asked for; 0: not known

	trust atomic.Int64 // believed until then, since sem.start, by what the store answered
	basis atomic.Uint32
	state atomic.Uint32
	why   atomic.Pointer[leaseLost] // set before the state becomes lost

	mu  sync.Mutex
	ctx *leaseContext // made when asked for

	watches []*time.Timer // of MaxHold and SlowHold

	// The rest is the renewer's, under the lock of the list that the lease is in.
	prev, next *Lease
	due        time.Duration // its place in the list: when to look after it
	notBefore  time.Duration // no renewal is sent before, though due may be near
	renewal    renewal
	kept       bool        // in a list
	inDoubt    atomic.Bool // a renewal was not answered, and may reach the store yet
}

// The states of a lease.
const (
	held uint32 = iota
	released
	lost
	ended // by Close
)

// Who vouches for a lease.
const (
	byStore     uint32 = iota // it was granted or renewed: trusted for a TTL from the sending
	provisional               // a wake-up told of the grant: trusted for store.Claim, and renewed soon
	byLocal                   // Outage Local: the store is away, and does not know it
	byOpen                    // Outage Open: it holds no slot
)

// margin is how much earlier than the store's a lease's own time ends: for two
// clocks whose rates differ by a thousandth, and for the time from looking at
// the clock to acting.
func margin(ttl time.Duration) time.Duration { return max(50*time.Millisecond, ttl/1000) }

// forever is how long a lease is trusted that does not depend on the store for now.
const forever = time.Duration(1<<63 - 1)

// newLease makes a lease of r on that basis. sent is when the store was asked for it; d
// is what it answered, or what a wake-up told of. An outage policy has no answer: it
// passes a Decision with the limit alone.
func (s *Semaphore) newLease(ctx context.Context, r *store.Request, basis uint32, d store.Decision, sent time.Duration) *Lease {
	l := &Lease{sem: s, id: r.ID, slotID: r.SlotID, weight: r.Weight, limit: d.Limit, fence: d.Fence, parent: ctx}
	l.basis.Store(basis)
	ttl := s.opt.TTL
	switch basis {
	case provisional:
		ttl = min(ttl, store.Claim)
		l.since = s.now() // and no second earlier: what it waited is no holding
	case byStore:
		l.since = sent
	}
	l.trust.Store(int64(sent + ttl - margin(ttl)))
	return l
}

// keep has a new lease renewed.
func (s *Semaphore) keep(l *Lease, now time.Duration) {
	if !l.part {
		s.stats.granted.Add(1)
		s.stats.held.Add(1)
		l.watch()
	}
	if !s.renewer.add(l, now) { // closed meanwhile
		l.end(ended)
		s.renewer.giveBack(l)
	}
}

// until is how long l may be believed.
func (l *Lease) until() time.Duration {
	if basis := l.basis.Load(); basis == byLocal || basis == byOpen {
		return forever
	}
	return time.Duration(l.trust.Load())
}

// trusted reports whether l may still be believed.
func (l *Lease) trusted(now time.Duration) bool {
	return l.state.Load() == held && now < l.until()
}

// SlotID returns the slot id that the lease has in the store. Whoever knows it
// can take the lease away: it does not belong into URLs or logs.
func (l *Lease) SlotID() string { return l.slotID }

// Weight returns how many slots the lease holds.
func (l *Lease) Weight() int { return l.weight }

// Fence returns a number that is higher than that of every earlier lease of the
// id. A resource that remembers the highest it has seen, and refuses lower ones,
// is safe from a holder that was suspended and does not know that its lease is
// over. It is 0 if the store was not asked (FailedOpen). With several ids it is that of
// the first: see FenceOf.
func (l *Lease) Fence() uint64 { return l.fence }

// FailedOpen reports that the lease was admitted without the store, by the outage
// policy Open, and holds no slot. With several ids: of one of them at least.
func (l *Lease) FailedOpen() bool {
	if all := l.with.Load(); all != nil {
		return all.openly()
	}
	return l.basis.Load() == byOpen
}

// Expires returns until when the lease may be believed if it is not renewed. It
// moves on with each renewal. It is the zero time for a lease that an outage
// policy admitted or keeps. With several ids it is the earliest of theirs.
func (l *Lease) Expires() time.Time {
	until := l.until()
	if all := l.with.Load(); all != nil {
		for _, one := range all.leases {
			until = min(until, one.until())
		}
	}
	if until == forever {
		return time.Time{}
	}
	return l.sem.start.Add(until)
}

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

// look ends the lease if its time is over, at one of its ids at least.
func (l *Lease) look() {
	if all := l.with.Load(); all != nil {
		for _, one := range all.leases {
			one.lookAlone()
		}
		return
	}
	l.lookAlone()
}

func (l *Lease) lookAlone() {
	if l.state.Load() == held && l.sem.now() >= l.until() {
		l.expire()
	}
}

// expire is what becomes of a lease whose time is over: lost, unless the outage
// policy keeps it.
func (l *Lease) expire() {
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
	if !l.part {
		l.sem.stats.held.Add(-1)
		l.tellEnd()
	} else if all := l.with.Load(); all != nil {
		all.end(l)
	}
	l.stopWatches()
	l.mu.Lock()
	if l.ctx != nil {
		l.ctx.cancel(l.cause())
	}
	l.mu.Unlock()
	return true
}
