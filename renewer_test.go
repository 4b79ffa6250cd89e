package gotsem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

func TestALeaseIsRenewedUntilItIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 2, TTL: 9 * time.Second})
		var at []time.Duration
		began := time.Now()
		st.hooked(func(verb, _ string) {
			if verb == "renew" {
				at = append(at, time.Since(began))
			}
		})
		l := mustTry(t, s, "id", Weight(2))
		if l.Weight() != 2 || l.Fence() == 0 || l.SlotID() == "" || l.FailedOpen() {
			t.Errorf("%+v", l)
		}
		if got, want := l.Expires(), began.Add(9*time.Second-margin(9*time.Second)); !got.Equal(want) {
			t.Errorf("expires %v, want %v", got, want)
		}
		time.Sleep(5 * time.Minute)
		lives(t, l)
		stands(t, s, "id", 2, 0)
		for i, d := range at {
			var before time.Duration
			if i > 0 {
				before = at[i-1]
			}
			if gap := d - before; gap > 3200*time.Millisecond || gap < 2500*time.Millisecond {
				t.Fatalf("renewed after %v, the TTL is 9s", gap)
			}
		}
		if got := time.Until(l.Expires()); got < 5*time.Second || got > 9*time.Second {
			t.Errorf("renewed, and expires in %v", got)
		}
		mustRelease(t, l)
		if err := l.Context().Err(); !errors.Is(err, context.Canceled) || context.Cause(l.Context()) != context.Canceled {
			t.Errorf("released: %v, %v", err, context.Cause(l.Context()))
		}
		n := len(at)
		time.Sleep(time.Minute)
		if len(at) != n {
			t.Errorf("renewed after its release")
		}
		stands(t, s, "id", 0, 0)
		if st := s.Stats(); st.Renewals != uint64(n) || st.Held != 0 {
			t.Errorf("%d renewals; %+v", n, st)
		}
	})
}

func TestAThousandLeasesAreNotAThousandRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1000})
		leases := make([]*Lease, 1000)
		for i := range leases {
			leases[i] = mustTry(t, s, fmt.Sprint("id", i%10))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * time.Minute)
		renewals, trips := s.Stats().Renewals, st.asked("renew")
		if renewals < 11_000 || renewals > 14_000 {
			t.Errorf("%d renewals in 12 intervals of 1000 leases", renewals)
		}
		if trips*20 > int(renewals) {
			t.Errorf("%d trips for %d renewals", trips, renewals)
		}
		for i, l := range leases {
			lives(t, l)
			if i%2 == 0 {
				mustRelease(t, l)
			}
		}
		if st := s.Stats(); st.Held != 500 || st.Lost != 0 {
			t.Errorf("%+v", st)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for i := range 10 {
			if n := st.held(t, fmt.Sprint("id", i)); n != 0 {
				t.Errorf("%d are still held", n)
			}
		}
	})
}

// More batches than may be under way at once: the others follow.
func TestManyMoreLeasesThanOneBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 5000})
		leases := make([]*Lease, 5000)
		for i := range leases {
			leases[i] = mustTry(t, s, "id")
		}
		var most, under atomic.Int64
		st.hooked(func(verb, _ string) {
			if verb == "renew" {
				n := under.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				time.Sleep(100 * time.Millisecond)
				under.Add(-1)
			}
		})
		time.Sleep(3 * DefaultTTL)
		for _, l := range leases {
			if l.Context().Err() != nil {
				t.Fatal("lost")
			}
		}
		stands(t, s, "id", 5000, 0)
		if n := most.Load(); n != maxInFlight {
			t.Errorf("%d batches at once, want %d", n, maxInFlight)
		}
	})
}

// Broken renewals are tried again: one good answer in the window is enough.
func TestABriefOutageLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, TTL: 10 * time.Second, Outage: Closed})
		l := mustTry(t, s, "id")
		for range 5 {
			time.Sleep(7 * time.Second)
			st.is(refuses)
			time.Sleep(5 * time.Second) // renewed 3.4 s before at most, and tried again within 0.5 s
			st.is(well)
		}
		time.Sleep(10 * time.Second)
		lives(t, l)
		stands(t, s, "id", 1, 0)
		if st := s.Stats(); st.Lost != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// A renewal that is under way is not overtaken by the release: if it were, it
// could put the slot back.
func TestReleaseWaitsForTheRenewalUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, StoreTimeout: 5 * time.Second})
		l := mustTry(t, s, "id")
		gate := make(chan struct{})
		var order []string
		st.hooked(func(verb, _ string) {
			if verb == "renew" {
				<-gate
			}
			if verb != "peers" {
				order = append(order, verb)
			}
		})
		time.Sleep(DefaultTTL / 3)
		synctest.Wait()
		released := make(chan error)
		go func() { released <- l.Release(context.Background()) }()
		synctest.Wait()
		if len(order) != 0 {
			t.Errorf("%q before the renewal was answered", order)
		}
		if l.Context().Err() == nil {
			t.Error("it is being released, and its context goes on")
		}
		close(gate)
		if err := <-released; err != nil {
			t.Error(err)
		}
		if !slices.Equal(order, []string{"renew", "release"}) {
			t.Errorf("%q", order)
		}
		stands(t, s, "id", 0, 0)
	})
}

// registering has a renewal of a lease under way that registers it, as after an outage,
// and returns it with what lets the store have it.
func registering(t *testing.T, s *Semaphore, st *shaky) (l *Lease, land func()) {
	t.Helper()
	l = mustTry(t, s, "id")
	s.local.mu.Lock()
	s.local.count("id", 1)
	s.local.mu.Unlock()
	l.basis.Store(byLocal)
	asks, lands := make(chan struct{}), make(chan struct{})
	st.hooked(func(verb, _ string) {
		if verb == "renew" {
			close(asks)
			<-lands
		}
	})
	s.renewer.suspect(l.slotID)
	<-asks
	st.hooked(nil)
	return l, sync.OnceFunc(func() { close(lands) })
}

// A lease that ends while it is being registered is released when the registration is
// answered: the other way round, nobody would hold the slot for one TTL.
func TestAReleaseFollowsTheRegistrationUnderWay(t *testing.T) {
	for how, end := range map[string]func(s *Semaphore, l *Lease){
		"lost":     func(_ *Semaphore, l *Lease) { l.lose(expired) },
		"released": func(_ *Semaphore, l *Lease) { _ = l.Release(context.Background()) },
		"closed":   func(s *Semaphore, _ *Lease) { _ = s.Close() },
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newShaky()
				s := open(t, Options{Store: st, Limit: 1})
				l, land := registering(t, s, st)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					end(s, l)
				}()
				synctest.Wait()
				time.Sleep(DefaultStoreTimeout / 2)
				land()
				<-ended
				time.Sleep(2 * backlogAgain)
				if n := st.held(t, "id"); n != 0 {
					t.Errorf("%d slots are held, and nobody holds them", n)
				}
			})
		})
	}
}

// The same, with a registration that was given up, and is on its way all the same.
func TestAReleaseAfterARegistrationInDoubtIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1})
		l := mustTry(t, s, "id")
		st.is(hangs, "renew")
		s.renewer.suspect(l.slotID)
		time.Sleep(DefaultStoreTimeout)
		synctest.Wait()
		mustRelease(t, l)
		time.Sleep(backlogAgain / 2)
		late := s.renewalOf(l, s.now())
		late.Register = true
		if kept := st.Store.Renew(context.Background(), []store.Renewal{late})[0]; kept.Outcome != store.Restored {
			t.Fatalf("%+v", kept)
		}
		time.Sleep(backlogAgain)
		if n := st.held(t, "id"); n != 0 {
			t.Errorf("%d slots are held, and nobody holds them", n)
		}
	})
}

// A release waits for Redis no longer than StoreTimeout, also when a renewal is under
// way: what it waits for that counts.
func TestReleaseWithARenewalUnderWayIsBounded(t *testing.T) {
	for _, answered := range []time.Duration{time.Hour, DefaultStoreTimeout - 10*time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			st := newShaky()
			s := open(t, Options{Store: st, Limit: 1, Outage: Closed})
			l := mustTry(t, s, "id")
			renewal := make(chan struct{})
			st.hooked(func(verb, _ string) {
				if verb == "renew" {
					<-renewal
				}
			})
			st.is(hangs, "release")
			time.Sleep(DefaultTTL / 3)
			synctest.Wait()
			timer := time.AfterFunc(answered, func() { close(renewal) })
			began := time.Now()
			if err := l.Release(context.Background()); !errors.Is(err, ErrUnavailable) || !contains(err.Error(), "in the background") {
				t.Errorf("%v", err)
			}
			if took := time.Since(began); took > DefaultStoreTimeout {
				t.Errorf("a renewal that is answered after %v: Release took %v", answered, took)
			}
			st.is(well)
			if timer.Stop() {
				close(renewal)
			}
			time.Sleep(2 * time.Second)
			stands(t, s, "id", 0, 0) // after the renewal, which may have put it back
		})
	}
}

// Who hands a release over does not wait for a renewal either.
func TestAsyncReleaseDoesNotWaitForTheRenewalUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, AsyncRelease: true})
		l := mustTry(t, s, "id")
		renewal := make(chan struct{})
		st.hooked(func(verb, _ string) {
			if verb == "renew" {
				<-renewal
			}
		})
		time.Sleep(DefaultTTL / 3)
		synctest.Wait()
		began := time.Now()
		mustRelease(t, l)
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v", took)
		}
		close(renewal)
		time.Sleep(2 * time.Second)
		stands(t, s, "id", 0, 0)
	})
}

// The first renewal of a lease that was long on its way goes at once.
func TestALeaseThatWasLongOnItsWayIsRenewedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 2, TTL: 600 * time.Millisecond, StoreTimeout: 500 * time.Millisecond, Outage: Closed})
		mustTry(t, s, "id")
		time.Sleep(20 * time.Millisecond) // the renewer sleeps
		st.hooked(func(verb, _ string) {
			if verb == "acquire" {
				time.Sleep(100 * time.Millisecond)
			}
		})
		l := mustTry(t, s, "id")
		before := l.Expires()
		time.Sleep(s.renewer.tick + time.Millisecond)
		if !l.Expires().After(before) {
			t.Errorf("not renewed: %v", l.Expires().Sub(before))
		}
	})
}

// hanging has the first n renewals hang whatever their ctx says, until they are let go.
func hanging(st *shaky, n int) (letGo func()) {
	var mu sync.Mutex
	hold := make(chan struct{})
	st.hooked(func(verb, _ string) {
		if verb != "renew" {
			return
		}
		mu.Lock()
		n--
		hangs := n >= 0
		mu.Unlock()
		if hangs {
			<-hold
		}
	})
	return sync.OnceFunc(func() { close(hold) })
}

// A renewal that is not answered is sent again while there is trust. One of the two
// that goes well is enough, and the other, when it comes, takes nothing away from it.
func TestAnUnansweredRenewalIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1})
		letGo := hanging(st, 1)
		defer letGo()
		l := mustTry(t, s, "id")
		time.Sleep(DefaultTTL * 3 / 4)
		synctest.Wait()
		if n := st.asked("renew"); n != 2 {
			t.Fatalf("%d renewals were sent, the first of them is not answered; want 2", n)
		}
		until := l.Expires()
		if left := time.Until(until); left < DefaultTTL/2 {
			t.Fatalf("the second one went well, and the lease is trusted for %v", left)
		}
		letGo()
		synctest.Wait()
		if now := l.Expires(); now.Before(until) {
			t.Fatalf("trusted until %v, and after the first one's answer until %v", until, now)
		}
		time.Sleep(2 * DefaultTTL)
		lives(t, l)
		mustRelease(t, l)
		stands(t, s, "id", 0, 0)
	})
}

// Two renewals of a lease are in flight at most, and a release waits for both.
func TestTwoRenewalsAreInFlightAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Outage: Closed})
		letGo := hanging(st, 10)
		defer letGo()
		l := mustTry(t, s, "id")
		ends(t, l, ErrLeaseLost)
		if n := st.asked("renew"); n != 2 {
			t.Errorf("%d renewals were sent, none was answered; want 2", n)
		}
		synctest.Wait()
		if n := st.asked("release"); n != 0 {
			t.Errorf("%d releases were sent, which the renewals in flight may overtake", n)
		}
		letGo()
		time.Sleep(2 * backlogAgain)
		stands(t, s, "id", 0, 0)
	})
}

// waiting is a store in which renewals wait before they are sent.
type waiting struct {
	*shaky
	by time.Duration
}

func (s waiting) Renew(ctx context.Context, rs []store.Renewal) []store.RenewResult {
	time.Sleep(s.by)
	out := s.shaky.Renew(ctx, rs)
	for i := range out {
		out[i].Waited = s.by
	}
	return out
}

// What a renewal waited within the store before it was sent is not taken off the trust.
func TestTheTrustCountsFromTheSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Store: waiting{newShaky(), 200 * time.Millisecond}, Limit: 1})
		l := mustTry(t, s, "id")
		first := l.Expires()
		for l.Expires().Equal(first) {
			time.Sleep(time.Millisecond)
		}
		if left := time.Until(l.Expires()); left < DefaultTTL-margin(DefaultTTL)-10*time.Millisecond {
			t.Errorf("renewed just now, and trusted for %v of %v", left, DefaultTTL)
		}
		mustRelease(t, l)
	})
}
