package gotsem

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// levels are the leases of one call, one for each of its ids, which are held together.
// The first is the one that the caller has.
type levels struct {
	leases []*Lease
	since  time.Duration // they were all held
	over   atomic.Bool   // it is not counted as held any more
	told   atomic.Bool   // its loss was counted and logged
}

// end has the lease counted as held no more, once, since it has ended at one of its ids.
func (a *levels) end(at *Lease) {
	if a.over.CompareAndSwap(false, true) {
		a.leases[0].sem.stats.held.Add(-1)
		a.leases[0].tellEndAs(at)
	}
}

// openly reports whether a level was admitted by Outage Open.
func (a *levels) openly() bool {
	return slices.ContainsFunc(a.leases, func(l *Lease) bool { return l.basis.Load() == byOpen })
}

// lose ends the other levels with the one that was lost.
func (a *levels) lose(first *Lease) {
	for _, l := range a.leases {
		l.why.CompareAndSwap(nil, first.why.Load())
		if l.end(lost) {
			l.abandon()
		}
	}
}

// release gives all levels back, at once.
func (a *levels) release(ctx context.Context) error {
	if !a.leases[0].end(released) {
		return nil
	}
	leases := a.leases[:1:1]
	for _, l := range a.leases[1:] {
		if l.end(released) {
			leases = append(leases, l)
		}
	}
	first := a.leases[0]
	if first.basis.Load() != byOpen {
		first.sem.stats.released.Add(1)
	}
	return first.sem.releaseAll(ctx, leases)
}

// releaseAll gives back the slots of leases that are over, which goes to the store
// together. The error is the first.
func (s *Semaphore) releaseAll(ctx context.Context, leases []*Lease) (first error) {
	budget, began := s.opt.StoreTimeout, s.now()
	var rs []*store.Release
	var sent []*Lease
	for _, l := range leases {
		if l.basis.Load() == byOpen {
			s.opens.remove(l)
			continue
		}
		remains, left, err := l.settleRenewal(max(budget-(s.now()-began), 0))
		if left {
			first = cmp.Or(first, err)
			continue
		}
		sent = append(sent, l)
		rs = append(rs, &store.Release{ID: l.id, SlotID: l.slotID, Grace: s.opt.Grace, Budget: max(remains, time.Millisecond)})
	}
	inStore := make([]bool, len(sent))
	for i, l := range sent {
		inStore[i] = !s.local.uncount(l)
	}
	if s.opt.AsyncRelease {
		for _, r := range rs {
			s.gate.releaseAsync(r)
		}
	} else {
		for i, err := range s.gate.releaseAll(detached(ctx), rs) {
			if err != nil {
				first = cmp.Or(first, sent[i].owe(err, inStore[i]))
			}
		}
	}
	for _, l := range sent {
		if l.inDoubt.Load() {
			s.gate.backlog.add(l.id, l.slotID, true)
		}
	}
	return first
}

// IDs returns the ids of which the lease holds slots, in the order in which they were
// listed.
func (l *Lease) IDs() []string {
	all := l.with.Load()
	if all == nil {
		return []string{l.id}
	}
	ids := make([]string, len(all.leases))
	for i, one := range all.leases {
		ids[i] = one.id
	}
	return ids
}

// FenceOf returns the fence of the lease at one of its ids: see Fence, which is that of
// the first. It is 0 for any other id.
func (l *Lease) FenceOf(id string) uint64 {
	if all := l.with.Load(); all != nil {
		for _, one := range all.leases {
			if one.id == id {
				return one.fence
			}
		}
		return 0
	}
	if id == l.id {
		return l.fence
	}
	return 0
}
