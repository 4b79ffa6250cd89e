package gotsem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

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
	budget, left, err := l.settleRenewal(s.opt.StoreTimeout)
	if left {
		return err
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

// settleRenewal has l, which is over, renewed no more, and returns what remains of
// budget. A renewal that is under way must not overtake the release: it could put back
// what was given back. Waiting for it takes of the same budget. left reports that it was
// not answered, and that l is left to be released when it is; the error is for whoever
// waits for that, and with AsyncRelease nobody does.
func (l *Lease) settleRenewal(budget time.Duration) (remains time.Duration, left bool, err error) {
	s := l.sem
	if renewing := s.renewer.remove(l); renewing != nil {
		if budget = s.awaitRenewal(renewing, budget); budget <= 0 {
			s.local.uncount(l)
			s.renewer.giveBack(l)
			if !s.opt.AsyncRelease {
				err = s.late(&unavailable{id: l.id, cause: errRenewing})
			}
			return 0, true, err
		}
	}
	if l.since > 0 && s.drains.wanted.Load() {
		now := s.now()
		s.drains.released(l.id, now-l.since, now)
	}
	return budget, false, nil
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
