package gotsem

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	renewerLists = 16 // so that leases that come and go do not meet in one lock
	renewBatch   = 256
	maxInFlight  = 4 // batches, for each server of the store
	maxRenewals  = 2 // renewals of one lease in flight: one, and one more if it is not answered

	// provisionalAfter is when a provisional lease is renewed: what is released sooner
	// need not be. Those due within provisionalTogether share a call.
	provisionalAfter    = 20 * time.Millisecond
	provisionalTogether = 10 * time.Millisecond
)

// renewer renews the leases of a semaphore: each at about TTL/3 after its last
// renewal, all that are due together in batches. One goroutine looks after all
// of them, and lives while there are some.
//
// What may happen to a lease that is due, in this order:
//
//   - Its time is over: it is lost, or Outage Local keeps it.
//   - It is not yet its turn (notBefore): a renewal failed a moment ago, one is in
//     flight and may still be answered, or it is provisional and may be released
//     before it need be renewed.
//   - Outage Local vouches for it, and the store is known to be away: nothing is sent.
//   - It is renewed. One that is not answered is sent once more, halfway to the end of
//     the trust: on a machine that is busy an answer may lie unread for long, and a
//     second connection may be read sooner.
type renewer struct {
	sem   *Semaphore
	every time.Duration // between two renewals of one lease
	tick  time.Duration // what is due within a tick is renewed together

	lists [renewerLists]leaseList

	mu       sync.Mutex
	inFlight map[string]int // batches, by server: one that hangs holds up only its own
	none     chan struct{}  // closed when there are none; nil: nobody waits for that

	running atomic.Bool
	closed  atomic.Bool
	pending atomic.Int64  // leases that are over, and are released when their renewal is answered
	wakes   atomic.Int64  // when its goroutine looks again by itself
	nudge   chan struct{} // something is due earlier than it was
}

func (k *renewer) init(s *Semaphore) {
	k.sem = s
	k.every = s.opt.TTL / 3
	k.tick = max(s.opt.TTL/64, time.Millisecond)
	k.inFlight = make(map[string]int)
	k.nudge = make(chan struct{}, 1)
}

func (k *renewer) list(l *Lease) *leaseList { return k.listOf(l.slotID) }

func (k *renewer) listOf(slotID string) *leaseList {
	return &k.lists[slotID[len(slotID)-1]%renewerLists]
}

// jittered is an interval between renewals, shorter by up to a tenth: what was taken
// together does not stay together in all processes.
func (k *renewer) jittered() time.Duration { return k.every - rand.N(k.every/10+1) }

// add has l renewed from now on. It returns false if the renewer was closed.
func (k *renewer) add(l *Lease, now time.Duration) bool {
	// Counted from when it was asked for, which the trust tells: a lease that was taken
	// over in an outage is older than it is ours.
	asked := time.Duration(l.trust.Load()) - (k.sem.opt.TTL - margin(k.sem.opt.TTL))
	due, soon := asked+k.jittered(), false
	switch {
	case l.basis.Load() == provisional:
		due, soon = (now + provisionalAfter + provisionalTogether).Truncate(provisionalTogether), true
		l.notBefore = due // a tick is too long for it
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
		go k.loop(0, k.sem.closing)
	}
}

// remove has l renewed no more. If a renewal of it is in flight, it returns a channel
// that is closed when that is answered.
func (k *renewer) remove(l *Lease) chan struct{} {
	list := k.list(l)
	list.mu.Lock()
	defer list.mu.Unlock()
	list.unlink(l)
	return l.renewal.answered
}

// giveBack has the slots of l, which is over, released in the background, and l renewed
// no more. A renewal in flight may put it back, so that one is answered first.
func (k *renewer) giveBack(l *Lease) {
	list := k.list(l)
	list.mu.Lock()
	list.unlink(l)
	waits := l.renewal.flights > 0
	if waits && !l.renewal.thenRelease {
		l.renewal.thenRelease = true
		k.pending.Add(1)
	}
	list.mu.Unlock()
	if !waits {
		k.sem.gate.backlog.add(l.id, l.slotID, l.inDoubt.Load())
	}
}

// suspect has the lease with that slot id renewed at once, to see whether it
// still is one.
func (k *renewer) suspect(slotID string) {
	list := k.listOf(slotID)
	list.mu.Lock()
	defer list.mu.Unlock()
	var suspects []*Lease
	for l := list.first; l != nil; l = l.next {
		if l.slotID == slotID { // of several ids, all that have it
			suspects = append(suspects, l)
		}
	}
	for _, l := range suspects {
		k.hasten(list, l)
	}
	if len(suspects) > 0 {
		k.wake()
	}
}

// align has the leases of several ids renewed together from now on: when the first of
// them is due.
func (k *renewer) align(leases []*Lease) {
	due := forever
	for _, l := range leases {
		list := k.list(l)
		list.mu.Lock()
		if l.kept {
			due = min(due, l.due)
		}
		list.mu.Unlock()
	}
	for _, l := range leases {
		list := k.list(l)
		list.mu.Lock()
		if l.kept && l.due != due && l.renewal.flights == 0 {
			list.unlink(l)
			list.insert(l, due)
		}
		list.mu.Unlock()
	}
}

// hasten has l renewed at once, or when what is in flight is answered. Its list is
// locked.
func (k *renewer) hasten(list *leaseList, l *Lease) {
	if l.renewal.flights == 0 {
		l.notBefore = 0
	}
	list.unlink(l)
	list.insert(l, 0)
}

// register has the leases that server does not know of, and those whose renewal failed
// last, renewed at once.
func (k *renewer) register(server string) {
	for i := range k.lists {
		list := &k.lists[i]
		list.mu.Lock()
		for l := list.first; l != nil; {
			after := l.next
			if (l.basis.Load() == byLocal || l.notBefore > 0) && k.sem.gate.server(l.id) == server {
				k.hasten(list, l)
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
	var urgent, due, over []*Lease // provisional ones have the least time, and go first
	for i := range k.lists {
		list := &k.lists[i]
		list.mu.Lock()
		some = some || list.first != nil
		for l := list.first; l != nil; {
			after := l.next
			if l.due > now+k.tick {
				next = min(next, l.due-now)
				break
			}
			switch until := l.until(); {
			case until <= now:
				over = append(over, l)
			case l.notBefore > now:
				next = min(next, l.notBefore-now, until-now)
			case l.basis.Load() == byLocal && k.sem.gate.away(l.id):
				list.unlink(l)
				list.insert(l, now+k.every)
			default:
				l.depart(now, until)
				if l.basis.Load() == provisional {
					urgent = append(urgent, l)
				} else {
					due = append(due, l)
				}
				next = min(next, l.notBefore-now, until-now)
			}
			l = after
		}
		list.mu.Unlock()
	}
	for _, l := range over {
		l.expire()
	}
	for server, due := range k.byServer(append(urgent, due...)) {
		for len(due) > 0 && k.begin(server, due[0].id) {
			n := min(len(due), renewBatch)
			batch := due[:n:n]
			due = due[n:]
			sendBatch := func() {
				defer k.end(server)
				k.renew(batch)
			}
			if send == nil {
				send = sendBatch
			} else {
				go sendBatch()
			}
		}
		for _, l := range due { // enough are in flight; they are still due when one is answered
			k.settle(l, now, nil)
			next = min(next, k.tick)
		}
	}
	return next, some, send
}

// close ends every lease. Its slots are released in the background, which Close waits
// for.
func (k *renewer) close() {
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
			k.sem.local.uncount(l)
			k.giveBack(l)
		}
	}
}

// wait waits, for as long as ctx allows, until the renewals in flight are answered:
// what they renew is released only then. No other begins after close.
func (k *renewer) wait(ctx context.Context) {
	k.mu.Lock()
	if len(k.inFlight) == 0 {
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
