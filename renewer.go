package gotsem

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

const (
	renewerLists = 16 // so that leases that come and go do not meet in one lock
	renewBatch   = 256
	maxInFlight  = 4 // batches under way, for each server of the store

	// provisionalAfter is when a lease that is believed by word of its grant is renewed: what is
	// released sooner need not be. Those due within provisionalTogether share a call.
	provisionalAfter    = 20 * time.Millisecond
	provisionalTogether = 10 * time.Millisecond
)

// renewer renews the leases of a semaphore: each at about TTL/3 after its last
// renewal, all that are due together in batches. One goroutine looks after all
// of them, and lives while there are some.
type renewer struct {
	sem   *Semaphore
	every time.Duration // between two renewals of one lease
	tick  time.Duration // what is due within a tick is renewed together

	lists [renewerLists]leaseList

	mu     sync.Mutex
	flying map[string]int // batches under way, by server: one that hangs holds up only its own
	none   chan struct{}  // closed when there are none; nil: nobody waits for that

	running atomic.Bool
	closed  atomic.Bool
	pending atomic.Int64  // leases that are over, and wait for a renewal before they are given back
	wakes   atomic.Int64  // when its goroutine looks again by itself
	nudge   chan struct{} // something is due earlier than it was
}

// leaseList is a list of leases, sorted by when they are due. The interval is the
// same for all, so that a new one belongs near the end.
type leaseList struct {
	mu          sync.Mutex
	first, last *Lease
	_           [40]byte
}

func (k *renewer) init(s *Semaphore) {
	k.sem = s
	k.every = s.opt.TTL / 3
	k.tick = max(s.opt.TTL/64, time.Millisecond)
	k.flying = make(map[string]int)
	k.nudge = make(chan struct{}, 1)
}

func (k *renewer) list(l *Lease) *leaseList { return k.listOf(l.slotID) }

func (k *renewer) listOf(slotID string) *leaseList {
	return &k.lists[slotID[len(slotID)-1]%renewerLists]
}

// add has l renewed from now on. It returns false if the renewer was closed.
func (k *renewer) add(l *Lease, now time.Duration) bool {
	// Counted from the asking, which the trust tells: a lease that was taken over in an
	// outage is older than it is ours. With up to a tenth of jitter, so that what was
	// taken together does not stay together in all processes.
	asked := time.Duration(l.trust.Load()) - (k.sem.opt.TTL - margin(k.sem.opt.TTL))
	if l.local.Load() {
		asked = now
	}
	due := asked + k.every - rand.N(k.every/10+1)
	soon := l.brief // it is the renewer's from here on
	switch {
	case soon:
		due = (now + provisionalAfter + provisionalTogether).Truncate(provisionalTogether)
	case now-asked > k.every/4: // long on its way, and so may its renewal be
		due, soon = now, true
	}
	list := k.list(l)
	list.mu.Lock()
	list.insert(l, due)
	list.mu.Unlock()
	if k.closed.Load() {
		k.remove(l)
		return false
	}
	if k.start(); soon && due < time.Duration(k.wakes.Load()) {
		k.wake()
	}
	return true
}

func (k *renewer) start() {
	if !k.running.Load() && k.running.CompareAndSwap(false, true) {
		go k.run()
	}
}

// remove has l renewed no more. If a renewal of it is under way, it returns a
// channel that is closed when that is answered.
func (k *renewer) remove(l *Lease) chan struct{} {
	list := k.list(l)
	list.mu.Lock()
	defer list.mu.Unlock()
	list.unlink(l)
	return l.renewing
}

// giveBack has the slots of l, which is over, given back in the background, and l
// renewed no more. A renewal that is under way may put it back, so that one is answered
// first.
func (k *renewer) giveBack(l *Lease) {
	list := k.list(l)
	list.mu.Lock()
	list.unlink(l)
	l.pending = l.renewing != nil
	owed := l.pending
	if owed {
		k.pending.Add(1)
	}
	list.mu.Unlock()
	if !owed {
		k.sem.gate.backlog.add(l.id, l.slotID, l.inDoubt.Load())
	}
}

// suspect has the lease with that slot id renewed at once, to see whether it
// still is one.
func (k *renewer) suspect(slotID string) {
	list := k.listOf(slotID)
	list.mu.Lock()
	defer list.mu.Unlock()
	for l := list.first; l != nil; l = l.next {
		if l.slotID == slotID {
			list.unlink(l)
			list.insert(l, 0)
			k.wake()
			return
		}
	}
}

// register has the leases that server does not know of, and those whose renewal failed
// last, renewed at once.
func (k *renewer) register(server string) {
	for i := range k.lists {
		list := &k.lists[i]
		list.mu.Lock()
		for l := list.first; l != nil; {
			after := l.next
			if (l.local.Load() || l.again > 0) && k.sem.gate.server(l.id) == server {
				l.again = 0
				list.unlink(l)
				list.insert(l, 0)
			}
			l = after
		}
		list.mu.Unlock()
	}
	k.wake()
}

func (k *renewer) wake() {
	select {
	case k.nudge <- struct{}{}:
	default:
	}
}

func (k *renewer) run() { k.loop(0, k.sem.closing) }

// loop looks after the leases, at first after sleep. What is due then it sends itself,
// and leaves the loop to a goroutine that it starts: between the timer and the sending
// there is no other that must be scheduled first, as on a machine that is busy.
func (k *renewer) loop(sleep time.Duration, closing <-chan struct{}) {
	timer := time.NewTimer(sleep)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-k.nudge:
		case <-closing:
			closing = nil // Close has waiters to answer first: no spin meanwhile
		}
		k.wakes.Store(int64(forever)) // what comes during the round may be missed by it
		next, some, send := k.round()
		if !some || k.closed.Load() {
			if send != nil {
				go send()
			}
			k.running.Store(false)
			if k.closed.Load() || k.empty() || !k.running.CompareAndSwap(false, true) {
				return
			}
			timer.Reset(0)
			continue // a lease came while the renewer was leaving
		}
		next = max(next, time.Millisecond)
		k.wakes.Store(int64(k.sem.now() + next))
		if send != nil {
			go k.loop(next, closing)
			send()
			return
		}
		timer.Reset(next)
	}
}

// empty reports whether no lease is kept.
func (k *renewer) empty() bool {
	for i := range k.lists {
		list := &k.lists[i]
		list.mu.Lock()
		first := list.first
		list.mu.Unlock()
		if first != nil {
			return false
		}
	}
	return true
}

// round sends off what is due, ends what is over, and returns how long until
// something is due again; some is false if no lease is kept. The first batch is left to
// the caller: send, if not nil.
func (k *renewer) round() (next time.Duration, some bool, send func()) {
	now := k.sem.now()
	next = k.every
	var due, brief []*Lease // what is brief goes first: it has the least time
	var over []*Lease
	for i := range k.lists {
		list := &k.lists[i]
		list.mu.Lock()
		for l := list.first; l != nil; {
			some = true
			after := l.next
			if l.due > now+k.tick {
				next = min(next, l.due-now)
				break
			}
			switch trust := time.Duration(l.trust.Load()); {
			case trust <= now:
				over = append(over, l)
			case l.brief && l.due > now: // the tick is too long for it
				next = min(next, l.due-now)
			case l.renewing != nil:
				next = min(next, trust-now) // unanswered: be there when its time is over
			case l.again > now: // failed a moment ago: no spin while its time runs out
				next = min(next, l.again-now, trust-now)
			case l.local.Load() && k.sem.gate.away(l.id): // nobody to renew it with
				list.unlink(l)
				list.insert(l, now+k.every)
			default:
				l.renewing = make(chan struct{})
				if l.brief {
					brief = append(brief, l)
				} else {
					due = append(due, l)
				}
				next = min(next, trust-now)
			}
			l = after
		}
		list.mu.Unlock()
	}
	for _, l := range over {
		l.over()
	}
	for server, due := range k.byServer(append(brief, due...)) {
		for len(due) > 0 && k.takeOff(server, due[0].id) {
			n := min(len(due), renewBatch)
			batch := due[:n:n]
			due = due[n:]
			fly := func() {
				defer k.land(server)
				k.renew(batch)
			}
			if send == nil {
				send = fly
			} else {
				go fly()
			}
		}
		for _, l := range due { // as many as may be are under way; they are still due when one ends
			k.settle(l, now, nil)
			next = k.tick
		}
	}
	return next, some, send
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

// takeOff reports whether one more batch may be sent to the server that keeps id. One at a
// time is enough for one that does not answer.
func (k *renewer) takeOff(server, id string) bool {
	most := maxInFlight
	if k.sem.gate.silence(id) > 0 {
		most = 1
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flying[server] >= most {
		return false
	}
	k.flying[server]++
	return true
}

func (k *renewer) land(server string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flying[server]--; k.flying[server] == 0 {
		delete(k.flying, server)
	}
	if len(k.flying) == 0 && k.none != nil {
		close(k.none)
		k.none = nil
	}
}

// settle ends a renewal: l is due again at due, unless it was removed meanwhile. What
// waited for that to be given back is.
func (k *renewer) settle(l *Lease, due time.Duration, do func()) {
	list := k.list(l)
	list.mu.Lock()
	if l.renewing != nil {
		close(l.renewing)
		l.renewing = nil
	}
	if l.kept {
		list.unlink(l)
		list.insert(l, due)
		if do != nil {
			do()
		}
	}
	owed := l.pending
	l.pending = false
	list.mu.Unlock()
	if owed {
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
		rs[i] = s.renewal(l, sent)
	}
	answers := s.gate.renew(context.Background(), rs)
	now := s.now()
	s.stats.renewals.Add(uint64(len(batch)))
	soon := now + max(k.every/10, k.tick)
	for i, l := range batch {
		if err := answers[i].Err; err == nil {
			l.inDoubt.Store(false)
		} else if asked(err) {
			l.inDoubt.Store(true)
		}
		switch a := answers[i]; {
		case a.Err != nil: // broken: tried again while there is trust
			trust, soon := time.Duration(l.trust.Load()), soon
			if l.brief {
				soon = min(soon, now+max((trust-now)/4, time.Millisecond))
			}
			k.settle(l, min(soon, trust), func() { l.again = soon })
		case a.Outcome == store.Restored && now >= time.Duration(l.trust.Load()):
			// Too late: somebody may have had its place in between.
			k.settle(l, soon, nil)
			l.lose(restoredLate)
		case a.Outcome == store.Lost:
			k.settle(l, soon, nil)
			l.lose(forgotten)
		case a.Outcome == store.Revoked:
			k.settle(l, soon, nil)
			l.lose(revoked)
		default:
			s.local.told(rs[i].ID, rs[i].OutageFor)
			if a.Outcome == store.Restored {
				s.stats.restored.Add(1)
			}
			s.local.lives(s.now())
			trust := sent + s.opt.TTL - margin(s.opt.TTL)
			k.settle(l, now+k.every-rand.N(k.every/10+1), func() {
				s.local.registered(l)
				l.trust.Store(int64(trust))
				l.brief = false
			})
		}
	}
	k.wake()
}

// renewal asks for more time for l.
func (s *Semaphore) renewal(l *Lease, now time.Duration) store.Renewal {
	return store.Renewal{
		ID: l.id, SlotID: l.slotID, TTL: s.opt.TTL, Weight: l.weight, Limit: l.limit, Fence: l.fence, Owner: s.owner,
		Trust: max(0, time.Duration(l.trust.Load())-now), Grace: s.opt.Grace, OutageFor: s.local.unreportedOutage(l.id), Register: l.local.Load(),
	}
}

// end ends every lease. Its slots are given back in the background, which Close waits
// for.
func (k *renewer) end() {
	k.closed.Store(true)
	k.wake()
	var all []*Lease
	for i := range k.lists {
		list := &k.lists[i]
		list.mu.Lock()
		for list.first != nil {
			all = append(all, list.first)
			list.unlink(list.first)
		}
		list.mu.Unlock()
	}
	for _, l := range all {
		if l.end(ended) {
			k.sem.local.ended(l)
			k.giveBack(l)
		}
	}
}

// wait waits, for as long as ctx allows, until the renewals under way are answered: what
// they renew is given back only then. No other begins after end.
func (k *renewer) wait(ctx context.Context) {
	k.mu.Lock()
	if len(k.flying) == 0 {
		k.mu.Unlock()
		return
	}
	none := make(chan struct{})
	k.none = none
	k.mu.Unlock()
	select {
	case <-none:
	case <-ctx.Done():
	}
}

// insert puts l where it belongs by due.
func (t *leaseList) insert(l *Lease, due time.Duration) {
	l.due, l.kept = due, true
	before := t.last
	switch {
	case t.first != nil && due <= t.first.due: // retries and suspects: no walk over all the others
		before = nil
	case l.brief: // it belongs near the front
		before = t.first
		for before != nil && before.next != nil && before.next.due <= due {
			before = before.next
		}
	default:
		for before != nil && before.due > due {
			before = before.prev
		}
	}
	l.prev = before
	if before != nil {
		l.next, before.next = before.next, l
	} else {
		l.next, t.first = t.first, l
	}
	if l.next != nil {
		l.next.prev = l
	} else {
		t.last = l
	}
}

func (t *leaseList) unlink(l *Lease) {
	if !l.kept {
		return
	}
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		t.first = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	} else {
		t.last = l.prev
	}
	l.prev, l.next, l.kept = nil, nil, false
}
