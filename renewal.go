package gotsem

import (
	"context"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// renewal is how the renewal of a lease stands: idle (no flights), in flight, or in
// flight and then to be released, since the lease is over: what is under way could
// put back what was released before it.
type renewal struct {
	answered    chan struct{} // closed when none is in flight any more; nil: idle
	good        time.Duration // when the latest that was answered well was sent
	flights     uint8         // sent and not answered
	thenRelease bool
}

// depart notes that a renewal of l is about to be sent, and says when another may be: a
// second one halfway to the end of the trust, a third one never. Its list is locked.
func (l *Lease) depart(now, until time.Duration) {
	if l.renewal.flights++; l.renewal.flights == 1 {
		l.renewal.answered = make(chan struct{})
	}
	l.notBefore = until
	if l.renewal.flights < maxRenewals && until != forever {
		l.notBefore = now + (until-now)/2
	}
}

// byServer parts leases by who keeps them, in their order.
func (k *renewer) byServer(due []*Lease) map[string][]*Lease {
	if len(due) == 0 {
		return nil
	}
	if k.sem.gate.parts == nil {
		return map[string][]*Lease{"": due}
	}
	parts := make(map[string][]*Lease)
	for _, l := range due {
		server := k.sem.gate.server(l.id)
		parts[server] = append(parts[server], l)
	}
	return parts
}

// begin reports whether one more batch may be sent to the server that keeps id. One at
// a time is enough for one that does not answer.
func (k *renewer) begin(server, id string) bool {
	most := maxInFlight
	if k.sem.gate.silence(id) > 0 {
		most = 1
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.inFlight[server] >= most {
		return false
	}
	k.inFlight[server]++
	return true
}

func (k *renewer) end(server string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.inFlight[server]--; k.inFlight[server] == 0 {
		delete(k.inFlight, server)
	}
	if len(k.inFlight) == 0 && k.none != nil {
		close(k.none)
		k.none = nil
	}
}

// settle ends a renewal of l, which is due again at due, unless it was removed
// meanwhile or has the other renewal to wait for. do is called before that, with the
// list locked. A release that waited for the renewal is sent.
func (k *renewer) settle(l *Lease, due time.Duration, do func()) {
	list := k.list(l)
	list.mu.Lock()
	l.notBefore = 0
	if l.renewal.flights--; l.renewal.flights == 0 {
		close(l.renewal.answered)
		l.renewal.answered = nil
	}
	if l.kept {
		list.unlink(l)
		list.insert(l, due)
		if do != nil {
			do()
		}
	}
	release := l.renewal.thenRelease && l.renewal.flights == 0
	if release {
		l.renewal.thenRelease = false
	}
	list.mu.Unlock()
	if release {
		k.sem.gate.backlog.add(l.id, l.slotID, l.inDoubt.Load())
		k.pending.Add(-1)
	}
}

// renew renews a batch.
func (k *renewer) renew(batch []*Lease) {
	s := k.sem
	sent := s.now()
	rs := make([]store.Renewal, len(batch))
	for i, l := range batch {
		rs[i] = s.renewalOf(l, sent)
	}
	answers := s.gate.renew(context.Background(), rs)
	now := s.now()
	s.stats.renewals.Add(uint64(len(batch)))
	for i, l := range batch {
		k.answered(l, &rs[i], answers[i], sent, now)
	}
	k.wake()
}

// answered is what becomes of l when the renewal r of it, sent then, is answered.
func (k *renewer) answered(l *Lease, r *store.Renewal, a store.RenewResult, sent, now time.Duration) {
	s := k.sem
	again := now + max(k.every/10, k.tick)
	switch {
	case a.Err != nil: // broken: tried again while there is trust
		if mayHaveArrived(a.Err) {
			l.inDoubt.Store(true)
		}
		until := l.until()
		if l.basis.Load() == provisional {
			again = min(again, now+max((until-now)/4, time.Millisecond))
		}
		k.settle(l, min(again, until), func() {
			if l.renewal.good < sent { // else the other one has gone well since
				l.notBefore = again
			} else {
				k.reinsert(l, now+k.jittered())
			}
		})
		return
	case a.Outcome == store.Restored && now >= l.until():
		// Too late: somebody may have had its place in between.
		k.settle(l, again, nil)
		l.lose(restoredLate)
		return
	case a.Outcome == store.Lost:
		k.settle(l, again, nil)
		l.lose(forgotten)
		return
	case a.Outcome == store.Revoked:
		k.settle(l, again, nil)
		l.lose(revoked)
		return
	}
	s.local.reported(r.ID, r.OutageFor)
	if a.Outcome == store.Restored {
		s.stats.restored.Add(1)
	}
	s.local.heartbeat()
	// The store's count began no earlier than the sending.
	trust := sent + a.Waited + s.opt.TTL - margin(s.opt.TTL)
	next := now + k.jittered()
	if l.part { // renewed with those of its other ids, so that it stays with them
		next = now + k.every
	}
	k.settle(l, next, func() {
		if l.renewal.flights == 0 {
			l.inDoubt.Store(false)
		}
		l.renewal.good = max(l.renewal.good, sent)
		l.trust.Store(max(l.trust.Load(), int64(trust)))
		if !s.local.uncount(l) {
			l.basis.CompareAndSwap(provisional, byStore)
		}
	})
}

// reinsert moves l in its list, which is locked.
func (k *renewer) reinsert(l *Lease, due time.Duration) {
	list := k.list(l)
	list.unlink(l)
	list.insert(l, due)
}

// renewalOf asks for more time for l.
func (s *Semaphore) renewalOf(l *Lease, now time.Duration) store.Renewal {
	return store.Renewal{
		ID: l.id, SlotID: l.slotID, TTL: s.opt.TTL, Weight: l.weight, Limit: l.limit, Fence: l.fence, Owner: s.owner,
		Trust: max(0, l.until()-now), Grace: s.opt.Grace,
		OutageFor: s.local.unreportedOutage(l.id), Register: l.basis.Load() == byLocal,
	}
}
