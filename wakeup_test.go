package gotsem

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// Nobody pushes here: the poll is what is left.
func TestWithoutWakeUps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: only{st}, Limit: 1, Queue: 100, TTL: time.Minute})
		l := mustTry(t, s, "id")
		time.Sleep(400 * time.Millisecond)
		var ws []*queued
		for range 30 {
			ws = append(ws, queue(s, "id"))
		}
		before := st.asked("acquire")
		time.Sleep(10 * time.Second)
		if n := st.asked("acquire") - before; n != 30*10 {
			t.Errorf("30 waiters asked %d times in 10 s", n)
		}
		for i, w := range ws {
			began := time.Now()
			mustRelease(t, l)
			select {
			case <-w.done:
			case <-time.After(time.Minute):
				t.Fatalf("waiter %d is not served", i)
			}
			if l = w.lease; w.err != nil || w.at.Sub(began) > pollEvery {
				t.Fatalf("waiter %d: %v after %v", i, w.err, w.at.Sub(began))
			}
		}
	})
}

// The store may say "something happened" and not to whom.
func TestAWakeUpForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: only{st}, Limit: 1, Queue: 5})
		l := mustTry(t, s, "id")
		w, other := queue(s, "id"), queue(s, "id")
		mustRelease(t, l)
		if w.answered() {
			t.Fatal("nobody told it")
		}
		s.woken(store.Wakeup{})
		w.holds(t)
		if other.answered() {
			t.Fatal("granted twice")
		}
		s.woken(store.Wakeup{})
		s.woken(store.Wakeup{})
	})
}

// telling is a store whose words carry grants.
type telling struct {
	*shaky
	mu    sync.Mutex
	asked map[string]uint64 // by slot id, the last asking
	n     uint64
	lost  bool // it says nothing
}

func newTelling() *telling {
	return &telling{shaky: newShaky(), asked: make(map[string]uint64)}
}

func (s *telling) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	d, err := s.shaky.Acquire(ctx, r)
	if err == nil && d.Outcome == store.Waiting {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.n++
		s.asked[r.SlotID], d.PollID = s.n, s.n
	}
	return d, err
}

func (s *telling) OnWake(wake func(store.Wakeup)) (stop func()) {
	return s.Store.OnWake(func(w store.Wakeup) {
		hs, _, _ := s.Holders(context.Background(), "id", "", 10)
		s.mu.Lock()
		for _, h := range hs {
			if h.SlotID == w.SlotID {
				w.Fence, w.Limit, w.PollID = h.Fence, 1, s.asked[h.SlotID]
			}
		}
		lost := s.lost
		s.mu.Unlock()
		if !lost {
			wake(w)
		}
	})
}

// TestAGrantIsBelievedByItsWakeup is about hand-offs that cost the waiter no question.
func TestAGrantIsBelievedByItsWakeup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newTelling()
		s := open(t, Options{Store: st, Limit: 1, Queue: 100})
		first := mustTry(t, s, "id")
		var line []*queued
		for range 10 {
			line = append(line, queue(s, "id"))
		}
		asked := st.shaky.asked("acquire")
		last, fence := first, first.Fence()
		for _, w := range line {
			mustRelease(t, last)
			if last = w.holds(t); last.Fence() <= fence {
				t.Fatalf("fence %d after %d", last.Fence(), fence)
			}
			fence = last.Fence()
		}
		if n := st.shaky.asked("acquire") - asked; n != 0 || st.shaky.asked("renew") != 0 {
			t.Fatalf("%d questions and %d renewals for ten hand-offs in no time", n, st.shaky.asked("renew"))
		}
		// Who holds on renews soon, once, and then as everybody does.
		early := last.Expires()
		if left := time.Until(early); left > store.Claim {
			t.Fatalf("believed for %v, and kept for it for %v", left, store.Claim)
		}
		time.Sleep(2 * provisionalAfter)
		synctest.Wait()
		if n := st.shaky.asked("renew"); n != 1 || last.Expires().Sub(early) < DefaultTTL/2 {
			t.Fatalf("%d renewals, believed until %v, before until %v", n, last.Expires(), early)
		}
		time.Sleep(store.Life + store.Claim)
		lives(t, last)
		if n := st.shaky.asked("renew"); n != 1 {
			t.Fatalf("%d renewals", n)
		}
		mustRelease(t, last)
		stands(t, s, "id", 0, 0)
	})
}

// TestAGrantThatIsNotRenewedInTime is about a store that goes away right after it.
func TestAGrantThatIsNotRenewedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newTelling()
		s := open(t, Options{Store: st, Limit: 1, Outage: Closed})
		first := mustTry(t, s, "id")
		w := queue(s, "id")
		time.Sleep(300 * time.Millisecond)
		mustRelease(t, first)
		lease := w.holds(t)
		st.is(refuses, "renew", "acquire")
		time.Sleep(store.Claim / 4)
		st.is(well, "renew", "acquire")
		time.Sleep(store.Claim / 2)
		lives(t, lease) // a short one costs nothing
		mustRelease(t, lease)

		first = mustTry(t, s, "id")
		w = queue(s, "id")
		asked := time.Now()
		mustRelease(t, first)
		lease = w.holds(t)
		st.is(refuses, "renew")
		ends(t, lease, ErrLeaseLost)
		if took := time.Since(asked); took > store.Claim {
			t.Fatalf("believed for %v, and kept for it for %v", took, store.Claim)
		}
		if n := st.shaky.asked("renew"); n > 40 {
			t.Fatalf("%d renewals were tried in %v", n, store.Claim)
		}
	})
}

// TestWhichWakeupsAreBelieved is about words that say too little, or too late.
func TestWhichWakeupsAreBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 1, TTL: time.Minute})
		time.Sleep(time.Hour)
		for _, c := range []struct {
			name    string
			word    store.Wakeup
			ago     time.Duration
			believe bool
		}{
			{"a grant after the last asking", store.Wakeup{Fence: 5, Limit: 1, PollID: 7}, 0, true},
			{"a second after it", store.Wakeup{Fence: 5, Limit: 1, PollID: 7}, time.Second, true},
			{"a grant after another asking", store.Wakeup{Fence: 5, Limit: 1, PollID: 6}, 0, false},
			{"no grant", store.Wakeup{PollID: 7}, 0, false},
			{"with hardly the time to renew it", store.Wakeup{Fence: 5, Limit: 1, PollID: 7}, store.Claim * 9 / 10, false},
			{"when it has gone to the next", store.Wakeup{Fence: 5, Limit: 1, PollID: 7}, store.Claim, false},
			{"an hour later", store.Wakeup{Fence: 5, Limit: 1, PollID: 7}, time.Hour, false},
		} {
			r := &store.Request{ID: "id", SlotID: "slot", Weight: 1, Limit: 1}
			lease := s.leaseByWakeup(t.Context(), r, c.word, store.Decision{Outcome: store.Waiting, PollID: 7}, s.now()-c.ago)
			if (lease != nil) != c.believe {
				t.Errorf("%s: %v", c.name, lease)
			}
			if lease != nil && time.Until(lease.Expires()) > store.Claim-c.ago {
				t.Errorf("%s: believed until %v", c.name, lease.Expires())
			}
		}
		r := &store.Request{ID: "id", SlotID: "slot", Weight: 1, Limit: 1}
		if l := s.leaseByWakeup(t.Context(), r, store.Wakeup{Fence: 5}, store.Decision{Outcome: store.Waiting}, s.now()); l != nil {
			t.Error("a store without names for its askings is believed")
		}
		// A grant that came together with the end of its ctx, or of the semaphore, was
		// a lease half of the time.
		over, cancel := context.WithCancel(t.Context())
		cancel()
		good, asked := store.Wakeup{Fence: 5, Limit: 1, PollID: 7}, store.Decision{Outcome: store.Waiting, PollID: 7}
		if l := s.leaseByWakeup(over, r, good, asked, s.now()); l != nil {
			t.Error("acquired with a ctx that is over")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if l := s.leaseByWakeup(t.Context(), r, good, asked, s.now()); l != nil {
			t.Error("acquired from a semaphore that is closed")
		}
	})
}

// TestALostWakeupCostsAPoll is about a hand-off whose word does not come.
func TestALostWakeupCostsAPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newTelling()
		s := open(t, Options{Store: st, Limit: 1})
		first := mustTry(t, s, "id")
		w := queue(s, "id")
		st.lost = true
		mustRelease(t, first)
		if w.answered() {
			t.Fatal("nobody told it")
		}
		time.Sleep(pollEvery)
		lease := w.holds(t)
		if left := time.Until(lease.Expires()); left < DefaultTTL-time.Second {
			t.Fatalf("asked for, and believed for %v", left)
		}
		mustRelease(t, lease)
	})
}

// Leases by word wait for nothing but a call that ends: they were put off for a whole
// tick while as many renewals as may be were under way, and ran out.
func TestProvisionalLeasesAreRenewedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 100
		st := newTelling()
		s := open(t, Options{Store: st, Limit: waiters, Queue: waiters, TTL: 2 * time.Minute})
		st.hooked(func(verb, _ string) {
			if verb == "renew" {
				time.Sleep(50 * time.Millisecond)
			}
		})
		var held []*Lease
		var line []*queued
		for range waiters {
			held = append(held, mustTry(t, s, "id"))
		}
		for range waiters {
			line = append(line, queue(s, "id"))
		}
		for i, w := range line {
			mustRelease(t, held[i])
			w.holds(t)
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(2 * store.Claim)
		for _, w := range line {
			lives(t, w.lease)
		}
		if n := s.Stats(); n.Lost != 0 || n.Held != waiters {
			t.Fatalf("%+v", n)
		}
	})
}
