package gotsem

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// localPoll is how often a waiter looks for a slot to spare in an outage.
const localPoll = 100 * time.Millisecond

// local is the outage policy Local. It keeps the cap from what this process knows:
//
//   - A slot that it held when the store went away stays its own until it lapses,
//     in the store's count too. So a lease that was released meanwhile, and whose
//     release the store has not heard of, can be taken over with its slot id.
//   - When the store is known to have answered nothing for one TTL, all that anybody
//     held in it has lapsed. From then on every process admits into its share: the
//     limit divided by the processes last seen. A lease whose time is over before that
//     is kept if it is within the share, since nobody else can take its place while
//     the store is away.
//
// All of this is so for each server of the store by itself. A process that was never
// told how many there are has no share: nobody counts it in.
//
// When the store is back, what was admitted without it is registered.
type local struct {
	sem   *Semaphore
	on    bool
	peers atomic.Int64 // processes last seen; 0: never asked, or no answer
	beat  atomic.Int64 // when they were last asked for

	unregistered atomic.Int64 // leases that the store does not know of
	overrides    atomic.Int64 // ids with a limit that was set in the store

	mu     sync.Mutex
	held   map[string]int // the weights of what is not registered, by id
	limits map[string]int // the overrides, where they differ from our limit
}

func newLocal(s *Semaphore) *local {
	l := &local{sem: s, on: s.opt.Outage == Local, held: make(map[string]int), limits: make(map[string]int)}
	l.beat.Store(-int64(time.Hour))
	return l
}

// learn remembers the limit that the store applied.
func (l *local) learn(r *store.Request, d store.Decision) {
	if !l.on {
		return
	}
	l.reported(r.ID, r.OutageFor)
	override := d.Limit != r.Limit
	if (override || l.overrides.Load() > 0) && d.Outcome != store.Recovering {
		l.mu.Lock()
		if len(l.limits) >= limitsKept {
			clear(l.limits)
		}
		if override {
			l.limits[r.ID] = d.Limit
		} else {
			delete(l.limits, r.ID)
		}
		l.overrides.Store(int64(len(l.limits)))
		l.mu.Unlock()
	}
	l.heartbeat()
}

// heartbeat says now and then that this process lives, and learns how many do. Whoever
// holds counts, also one that has not acquired for long.
func (l *local) heartbeat() {
	if !l.on {
		return
	}
	now := int64(l.sem.now())
	last := l.beat.Load()
	if now-last <= int64(l.sem.opt.TTL/3) || !l.beat.CompareAndSwap(last, now) {
		return
	}
	if c, ok := l.sem.opt.Store.(store.PeerCounter); ok {
		go l.countPeers(c)
	}
}

func (l *local) countPeers(c store.PeerCounter) {
	_ = l.sem.gate.call(context.Background(), "", func(ctx context.Context) error {
		n, err := c.Peers(ctx, l.sem.opt.TTL)
		if err == nil {
			l.peers.Store(int64(max(n, 1)))
		}
		return err
	})
}

// share is what this process may hold of id without the store. mu is held.
func (l *local) share(id string, limit int) int {
	peers := int(l.peers.Load())
	if peers == 0 {
		return 0 // never had an answer: others may hold everything
	}
	if override, ok := l.limits[id]; ok {
		limit = override
	}
	return max(limit, 0) / peers
}

// admit makes a lease without the store, or returns nil.
func (l *local) admit(ctx context.Context, r *request) *Lease {
	s := l.sem
	now := s.now()
	if old := s.gate.backlog.takeOver(r.ID, r.Weight, now); old != nil {
		taken := store.Request{ID: old.id, SlotID: old.slotID, Weight: old.weight}
		lease := s.newLease(ctx, &taken, byStore, store.Decision{Limit: old.limit, Fence: old.fence}, now)
		lease.trust.Store(old.trust.Load()) // and no longer: the store counts from its renewal
		lease.part = r.part != nil
		s.keep(lease, now)
		return lease
	}
	asked := [maxLevels]store.Request{r.Request}
	all := asked[:1]
	if r.part != nil { // the shares of all levels whose server is away, or none
		for _, further := range r.part.further(r.ID) {
			if s.gate.silence(further.ID) >= s.opt.TTL {
				all = append(all, further)
			}
		}
	}
	if !l.reserve(all) {
		return nil
	}
	slotID := s.slotID() // one of its own: the store may still carry out the request
	var first *Lease
	for i := range all {
		own := store.Request{ID: all[i].ID, SlotID: slotID, Weight: all[i].Weight}
		lease := s.newLease(ctx, &own, byLocal, store.Decision{Limit: all[i].Limit}, now)
		lease.part = r.part != nil
		s.keep(lease, now)
		if i == 0 {
			first = lease
		} else {
			r.part.admitted = append(r.part.admitted, lease)
		}
	}
	return first
}

// reserve counts what is asked for, if there is a share of all of it.
func (l *local) reserve(all []store.Request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Looked at with mu held: what is registered when the store is back frees no share.
	for i := range all {
		r := &all[i]
		if l.sem.gate.silence(r.ID) < l.sem.opt.TTL || l.held[r.ID]+r.Weight > store.ShareOf(l.share(r.ID, r.Limit), r.Share) {
			return false
		}
	}
	for i := range all {
		l.count(all[i].ID, all[i].Weight)
	}
	return true
}

// keep keeps a lease whose time is over, if the store is away and the lease is
// within the share.
func (l *local) keep(lease *Lease) bool {
	if !l.on || l.sem.gate.silence(lease.id) == 0 {
		return false
	}
	limit := l.sem.limits.remembered(lease.id, lease.limit) // nobody may wait for a LimitFunc here
	l.mu.Lock()
	defer l.mu.Unlock()
	if lease.basis.Load() == byLocal {
		return true
	}
	if l.sem.gate.silence(lease.id) == 0 || l.held[lease.id]+lease.weight > l.share(lease.id, limit) {
		return false
	}
	l.count(lease.id, lease.weight)
	lease.basis.Store(byLocal)
	return true
}

// count has a lease that the store does not know of count. mu is held.
func (l *local) count(id string, weight int) {
	l.unregistered.Add(1)
	l.held[id] += weight
}

// uncount is called when lease is over, or the store knows it again: it does not count
// here any more. It reports whether it did.
func (l *local) uncount(lease *Lease) bool {
	if lease.basis.Load() != byLocal {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !lease.basis.CompareAndSwap(byLocal, byStore) {
		return false
	}
	l.unregistered.Add(-1)
	if l.held[lease.id] -= lease.weight; l.held[lease.id] <= 0 {
		delete(l.held, lease.id)
	}
	return true
}

// storeIsBack registers, when a server answers again, what was admitted without it.
func (l *local) storeIsBack(server string) {
	if !l.on {
		return
	}
	if l.unregistered.Load() > 0 {
		l.sem.renewer.register(server)
	}
	l.beat.Store(-int64(time.Hour)) // count the processes anew
}

// unreportedOutage is how long the server of id was away, if it was for so long that
// others may have admitted too, and has not been told: it makes no grants then until
// they have had the time to register.
func (l *local) unreportedOutage(id string) time.Duration {
	if !l.on {
		return 0
	}
	return l.sem.gate.outage(id)
}

// reported says that the server of id has heard of the outage.
func (l *local) reported(id string, outage time.Duration) {
	if outage > 0 {
		l.sem.gate.reported(id)
	}
}
