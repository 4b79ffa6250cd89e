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

// watch has a lease that is held for long noticed.
func (l *Lease) watch() {
	s := l.sem
	if s.opt.MaxHold == 0 && s.opt.SlowHold == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := s.opt.MaxHold; d > 0 {
		l.watches = append(l.watches, time.AfterFunc(d, func() { l.lose(heldTooLong) }))
	}
	if d := s.opt.SlowHold; d > 0 {
		l.watches = append(l.watches, time.AfterFunc(d, func() {
			if l.state.Load() == held {
				s.opt.Logger.Warn("gotsem: a lease is held for long", "id", l.id, "owner", s.owner, "held", d)
			}
		}))
	}
}

func (l *Lease) stopWatches() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, timer := range l.watches {
		timer.Stop()
	}
	l.watches = nil
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

// leaseLost is the ErrLeaseLost of one lease.
type leaseLost struct {
	id     string
	reason lossReason
}

func (e *leaseLost) Error() string { return fmt.Sprintf("gotsem: %q: lease lost: %s", e.id, e.reason) }
func (e *leaseLost) Is(target error) bool {
	return target == ErrLeaseLost || target == ErrHeldTooLong && e.reason == heldTooLong
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

// lossReason is why a lease was lost.
type lossReason uint8

const (
	expired      lossReason = iota // no renewal was answered in time
	restoredLate                   // one was, but after its time
	revoked                        // by Revoke or Clear
	forgotten                      // by the store
	heldTooLong                    // Options.MaxHold
)

func (w lossReason) String() string {
	switch w {
	case restoredLate:
		return "the store put it back after its time was over"
	case revoked:
		return "it was revoked"
	case forgotten:
		return "the store does not know it any more"
	case heldTooLong:
		return "it was held for longer than MaxHold"
	}
	return "it could not be renewed in time"
}

// lose ends a lease that is not ours any more. Its slots are given back all the
// same: we may be wrong, and a slot id that holds nothing harms nobody.
func (l *Lease) lose(why lossReason) {
	l.why.CompareAndSwap(nil, &leaseLost{l.id, why})
	if !l.end(lost) {
		return
	}
	l.abandon()
	all := l.with.Load()
	switch {
	case all != nil:
		if all.told.CompareAndSwap(false, true) {
			l.tellLoss(why)
		}
		all.lose(l)
	case !l.part: // else its call takes it again
		l.tellLoss(why)
	}
}

// abandon has the slots of a lost lease released in the background.
func (l *Lease) abandon() {
	l.sem.local.uncount(l)
	l.sem.renewer.giveBack(l)
}

func (l *Lease) tellLoss(why lossReason) {
	s := l.sem
	s.stats.lost.Add(1)
	switch why {
	case revoked:
		s.stats.revoked.Add(1)
	case expired, restoredLate:
		s.stats.expired.Add(1)
	case heldTooLong:
		s.stats.heldTooLong.Add(1)
		s.opt.Logger.Warn("gotsem: lease held too long, and taken away", "id", l.id, "owner", s.owner, "held", s.opt.MaxHold)
		return
	}
	s.opt.Logger.Warn("gotsem: lease lost", "id", l.id, "why", why.String())
}

// Release gives the slots back, of all ids; the heads of the lines have them at once.
// Releasing twice, or what was lost, is a no-op, so that a deferred Release is always
// safe.
//
// It does not end early with ctx, whose values alone it takes, and waits for the store
// at most StoreTimeout, a renewal that is under way included. An error says that the
// store did not answer: the release is then tried again in the background, and the
// slots lapse within one TTL at the latest.
func (l *Lease) Release(ctx context.Context) error {
	if all := l.with.Load(); all != nil {
		return all.release(ctx)
	}
	if !l.end(released) {
		return nil
	}
	s := l.sem
	if l.basis.Load() == byOpen {
		s.opens.remove(l)
		return nil
	}
	s.stats.released.Add(1)
	budget, err := l.settleRenewal(s.opt.StoreTimeout)
	if err != nil {
		return asked(err)
	}
	inStore := !s.local.uncount(l)
	r := s.releases.Get().(*store.Release)
	defer s.releases.Put(r)
	*r = store.Release{ID: l.id, SlotID: l.slotID, Grace: s.opt.Grace, Budget: budget}
	// A renewal that was given up may overtake it too: then it is released twice.
	inDoubt := l.inDoubt.Load()
	if s.opt.AsyncRelease {
		s.gate.releaseAsync(r)
	} else if _, err := s.gate.release(detached(ctx), r); err != nil {
		return l.owe(err, inStore)
	}
	if inDoubt {
		s.gate.backlog.add(l.id, l.slotID, true)
	}
	return nil
}

// settleRenewal has l, which is over, renewed no more, and returns what is left of
// budget. A renewal that is under way must not overtake the release: it could put back
// what was given back. Waiting for it takes of the same budget. An error says that it
// was not answered: then l is released when it is.
func (l *Lease) settleRenewal(budget time.Duration) (left time.Duration, err error) {
	s := l.sem
	if renewing := s.renewer.remove(l); renewing != nil {
		if budget = s.awaitRenewal(renewing, budget); budget <= 0 {
			s.local.uncount(l)
			s.renewer.giveBack(l)
			if s.opt.AsyncRelease {
				return 0, errInBackground
			}
			return 0, s.late(&unavailable{id: l.id, cause: errRenewing})
		}
	}
	if l.since > 0 && s.drains.wanted.Load() {
		now := s.now()
		s.drains.released(l.id, now-l.since, now)
	}
	return budget, nil
}

// owe has l, whose release failed with err, released in the background. inStore: the
// store may know of it.
func (l *Lease) owe(err error, inStore bool) error {
	p := &pendingRelease{slotOf: slotOf{l.id, l.slotID}, inDoubt: l.inDoubt.Load()}
	if inStore && !mayHaveArrived(err) {
		p.lease = l
	}
	l.sem.gate.backlog.put(p)
	return l.sem.late(err)
}

// errInBackground is no error: with AsyncRelease nobody waits.
var errInBackground = errors.New("gotsem: released in the background")

// asked is the error for whoever releases.
func asked(err error) error {
	if err == errInBackground {
		return nil
	}
	return err
}

var errRenewing = errors.New("a renewal that was under way was not answered in time")

// awaitRenewal waits for a renewal that is under way, for budget at most, and returns
// what is left of that. With AsyncRelease nobody waits.
func (s *Semaphore) awaitRenewal(renewing <-chan struct{}, budget time.Duration) (left time.Duration) {
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

// detached is ctx without its end.
func detached(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}
