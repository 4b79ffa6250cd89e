package gotsem

import (
	"fmt"
	"time"
)

// leaseLost is the ErrLeaseLost of one lease.
type leaseLost struct {
	id     string
	reason lossReason
}

func (e *leaseLost) Error() string { return fmt.Sprintf("gotsem: %q: lease lost: %s", e.id, e.reason) }
func (e *leaseLost) Is(target error) bool {
	return target == ErrLeaseLost || target == ErrHeldTooLong && e.reason == heldTooLong
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

// abandon has the slots of a lost lease released in the background. One that Outage Open
// admitted has none.
func (l *Lease) abandon() {
	if l.basis.Load() == byOpen {
		l.sem.opens.remove(l)
		return
	}
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
