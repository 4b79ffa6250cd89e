package gotsem

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
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

func TestReleaseTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1})
		a := mustTry(t, s, "id")
		mustRelease(t, a)
		b := mustTry(t, s, "id")
		before := st.asked("release")
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { mustRelease(t, a) })
		}
		all.Wait()
		if n := st.asked("release") - before; n != 0 {
			t.Errorf("the store was asked %d times more", n)
		}
		stands(t, s, "id", 1, 0)
		lives(t, b)
		over, cancel := context.WithCancel(context.Background())
		cancel()
		if err := b.Release(over); err != nil { // it does not end with its ctx
			t.Error(err)
		}
		stands(t, s, "id", 0, 0)
	})
}

func TestARevokedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		s := open(t, Options{Limit: 1, Queue: 2, Logger: log.logger()})
		ctx := context.Background()
		a := mustTry(t, s, "id")
		w := queue(s, "id")
		began := time.Now()
		if ok, err := s.Revoke(ctx, "id", "wrong"); ok || err != nil {
			t.Errorf("a wrong slot id: %v, %v", ok, err)
		}
		lives(t, a)
		hs, err := s.Holders(ctx, "id")
		if err != nil || len(hs) != 1 || hs[0].SlotID != a.SlotID() || hs[0].Fence != a.Fence() || hs[0].Weight != 1 || hs[0].Owner != describe("") {
			t.Errorf("%+v, %v", hs, err)
		}
		if ok, err := s.Revoke(ctx, "id", hs[0].SlotID); !ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
		ends(t, a, ErrLeaseLost)
		if d := time.Since(began); d > time.Second {
			t.Errorf("the store pushes, and yet it took %v", d)
		}
		w.holds(t)
		mustRelease(t, a) // a no-op
		time.Sleep(time.Minute)
		lives(t, w.lease)
		stands(t, s, "id", 1, 0)
		if st := s.Stats(); st.Lost != 1 || st.Held != 1 || st.Released != 0 {
			t.Errorf("%+v", st)
		}
		if len(log.with("lease lost")) != 1 {
			t.Errorf("%q", log.lines)
		}
	})
}

func TestAClearedLeaseWithoutAPush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: only{st}, Limit: 2})
		leases := []*Lease{mustTry(t, s, "id"), mustTry(t, s, "id")}
		began := time.Now()
		s.ForceRelease(context.Background(), "id")
		for _, l := range leases {
			ends(t, l, ErrLeaseLost)
		}
		if d := time.Since(began); d > DefaultTTL/3+DefaultTTL/64 {
			t.Errorf("found out after %v, the next renewal is due after %v", d, DefaultTTL/3)
		}
		stands(t, s, "id", 0, 0)
	})
}

// The store does not answer renewals: the lease is believed until the sending of
// the last good one + TTL - margin, and not a moment longer.
func TestTheTrustWindow(t *testing.T) {
	for _, how := range []mood{refuses, hangs} {
		synctest.Test(t, func(t *testing.T) {
			st := newShaky()
			s := open(t, Options{Store: st, Limit: 1, TTL: 10 * time.Second, Outage: Closed})
			other := open(t, Options{Store: st.Store, Limit: 1, Queue: 1, TTL: 10 * time.Second})
			l := mustTry(t, s, "id")
			time.Sleep(20 * time.Second)
			sent := l.Expires().Add(margin(10*time.Second) - 10*time.Second)
			st.is(how)
			w := queue(other, "id")
			ctx := l.Context()
			<-ctx.Done()
			if got, want := time.Since(sent), 10*time.Second-margin(10*time.Second); got > want+time.Millisecond || got < want {
				t.Errorf("%v: it ended %v after its last good renewal, want %v", how, got, want)
			}
			if !errors.Is(context.Cause(ctx), ErrLeaseLost) {
				t.Errorf("%v", context.Cause(ctx))
			}
			if w.answered() {
				t.Errorf("%v: somebody else had it before the loss was known", how)
			}
			<-w.done
			w.holds(t)
		})
	}
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

// The first code that runs after a suspend sees the loss, before any goroutine of
// ours has had a chance to.
func TestTheContextLooksAtTheClockItself(t *testing.T) {
	for _, look := range []func(context.Context) bool{
		func(c context.Context) bool { return c.Err() != nil },
		func(c context.Context) bool {
			select {
			case <-c.Done():
				return true
			default:
				return false
			}
		},
		func(c context.Context) bool { // one that is made from it
			child, cancel := context.WithCancel(c)
			defer cancel()
			_ = c.Err()
			<-child.Done()
			return errors.Is(context.Cause(child), ErrLeaseLost)
		},
	} {
		s := open(t, Options{Limit: 1})
		l := mustTry(t, s, "id")
		ctx := l.Context()
		if ctx.Err() != nil {
			t.Fatal("lost already")
		}
		l.trust.Store(int64(s.now())) // as if the time had passed
		if !look(ctx) {
			t.Error("not seen")
		}
		if !errors.Is(context.Cause(ctx), ErrLeaseLost) {
			t.Errorf("%v", context.Cause(ctx))
		}
		if s.Stats().Lost != 1 {
			t.Errorf("%+v", s.Stats())
		}
	}
}

func TestTheContextOfALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		s := open(t, Options{Limit: 3})
		parent, cancel := context.WithTimeout(context.WithValue(context.Background(), key{}, "v"), time.Second)
		defer cancel()
		l, err := s.Acquire(parent, "id")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		ctx := l.Context()
		if _, ok := ctx.Deadline(); ctx.Err() != nil || ctx.Value(key{}) != "v" || ok || ctx != l.Context() {
			t.Errorf("%v, %v: it has the values, not the end", ctx.Err(), ctx.Value(key{}))
		}
		before := runtime.NumGoroutine()
		child, cancelChild := context.WithCancel(ctx)
		defer cancelChild()
		if n := runtime.NumGoroutine(); n != before {
			t.Errorf("%d goroutines more for a child", n-before)
		}
		mustRelease(t, l)
		if child.Err() == nil {
			t.Error("its child lives")
		}
		late := mustTry(t, s, "id")
		mustRelease(t, late)
		if err := late.Context().Err(); !errors.Is(err, context.Canceled) { // first asked for when it is over
			t.Errorf("%v", err)
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

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 2, Queue: -1})
		ctx := context.Background()
		want := errors.New("mine")
		if err := s.Do(ctx, "id", func(context.Context) error { stands(t, s, "id", 2, 0); return want }, Weight(2)); err != want {
			t.Errorf("%v", err)
		}
		stands(t, s, "id", 0, 0)
		l := mustTry(t, s, "id", Weight(2))
		if err := s.Do(ctx, "id", func(context.Context) error { t.Error("done"); return nil }); !errors.Is(err, ErrFull) {
			t.Errorf("%v", err)
		}
		mustRelease(t, l)

		// f's ctx ends with the lease, and with the caller's.
		err := s.Do(ctx, "id", func(ctx context.Context) error {
			s.ForceRelease(context.Background(), "id")
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, ErrLeaseLost) {
			t.Errorf("%v", err)
		}
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		err = s.Do(bounded, "id", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		stands(t, s, "id", 0, 0)
	})
}

func TestPanicAndGoexit(t *testing.T) {
	s := open(t, Options{Limit: 2, Queue: 200})
	ctx := context.Background()
	abort := errors.New("abort handler")
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			defer func() {
				if p := recover(); i%2 == 0 && p != abort {
					t.Errorf("recovered %v", p)
				}
			}()
			_ = s.Do(ctx, "id", func(context.Context) error {
				if i%2 == 0 {
					panic(abort)
				}
				runtime.Goexit()
				return nil
			})
			t.Error("it went on")
		})
	}
	all.Wait()
	stands(t, s, "id", 0, 0)
	mustTry(t, s, "id")
	mustTry(t, s, "id")
	if _, err := s.Try(ctx, "id"); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
}

// The slot lapsed in the store and went to B: A is told, and takes nothing away.
func TestALapsedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, TTL: time.Second, Outage: Closed})
		a := mustTry(t, s, "id")
		st.is(refuses, "renew")
		time.Sleep(1001 * time.Millisecond)
		ends(t, a, ErrLeaseLost)
		st.is(well)
		b := mustTry(t, s, "id")
		for range 50 {
			mustRelease(t, a)
		}
		stands(t, s, "id", 1, 0)
		lives(t, b)
		if _, err := s.Try(context.Background(), "id"); !errors.Is(err, ErrFull) {
			t.Error(err)
		}
	})
}

// The answer came when the lease was over already: no lease is handed out.
func TestAnAnswerThatCameTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, TTL: time.Second})
		still := 2 * time.Second
		st.hooked(func(verb, _ string) {
			if verb == "acquire" {
				time.Sleep(still)
				still = 0
			}
		})
		if l, err := s.Try(context.Background(), "id"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v, %v", l, err)
		}
		synctest.Wait()
		stands(t, s, "id", 0, 0)
		still = 2 * time.Second
		l, err := s.Acquire(context.Background(), "id") // it asks again
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Until(l.Expires()); d < 900*time.Millisecond {
			t.Errorf("it has %v left", d)
		}
		stands(t, s, "id", 1, 0)
	})
}

func TestHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 9, Label: "a label"})
		ctx := context.Background()
		began := time.Now()
		time.Sleep(time.Second)
		a := mustTry(t, s, "id", Weight(3))
		time.Sleep(time.Second)
		r := s.TryAcquire(ctx, "id")
		if !r.Acquired || r.Active != 4 || r.Max != 9 {
			t.Fatalf("%+v", r)
		}
		time.Sleep(time.Second)
		hs, err := s.Holders(ctx, "id")
		if err != nil || len(hs) != 2 {
			t.Fatalf("%+v, %v", hs, err)
		}
		if h := hs[0]; h.SlotID != a.SlotID() || h.Weight != 3 || h.Fence != a.Fence() || !strings.HasSuffix(h.Owner, " a label") || !h.Since.Equal(began.Add(time.Second)) || !h.Until.Equal(began.Add(time.Second+DefaultTTL)) {
			t.Errorf("%+v", h)
		}
		if h := hs[1]; h.SlotID != r.SlotID || h.Weight != 1 || h.Fence != 0 || !h.Until.Equal(began.Add(2*time.Second+DefaultTTL)) {
			t.Errorf("%+v", h)
		}
		var ids []string
		for id, err := range s.IDs(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		if !slices.Equal(ids, []string{"id"}) {
			t.Errorf("%q", ids)
		}
		// TryAcquire's slots are not renewed.
		time.Sleep(DefaultTTL)
		if n := s.ActiveCount(ctx, "id"); n != 3 {
			t.Errorf("%d held, the lease of weight 3 alone is renewed", n)
		}
		s.Release(ctx, "id", r.SlotID)
		s.Release(ctx, "id", "")
		s.Release(ctx, "", "x")
		s.ForceRelease(ctx, "id")
		if n := s.ActiveCount(ctx, "id"); n != 0 {
			t.Errorf("%d held", n)
		}
		ends(t, a, ErrLeaseLost)
	})
}

func TestAStoreWithoutCapabilities(t *testing.T) {
	s := open(t, Options{Store: only{newShaky()}, Limit: 1})
	ctx := context.Background()
	_, errHolders := s.Holders(ctx, "id")
	var errIDs error
	for _, err := range s.IDs(ctx) {
		errIDs = err
	}
	for what, err := range map[string]error{"list holders": errHolders, "list ids": errIDs, "keep limits": s.SetLimit(ctx, "id", 1)} {
		if err == nil || !strings.Contains(err.Error(), "a store of type gotsem.only cannot "+what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	mustRelease(t, mustTry(t, s, "id"))
}

func TestSlotIDsAreNeverTheSame(t *testing.T) {
	var mu sync.Mutex
	seen := make(map[string]bool)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var s slotIDs
			mine := make([]string, 5000)
			for i := range mine {
				mine[i] = s.next()
			}
			mu.Lock()
			defer mu.Unlock()
			for _, id := range mine {
				if seen[id] || len(id) != idLen {
					t.Errorf("slot id %q", id)
				}
				seen[id] = true
			}
		})
	}
	all.Wait()
}

func TestKnownFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 2, KnownFull: 100 * time.Millisecond})
		other := open(t, Options{Store: st.Store, Limit: 2})
		ctx := context.Background()
		asked := func(want int) {
			t.Helper()
			synctest.Wait() // what is given back in the background ends what is known, too
			before := st.asked("acquire")
			for range 10 {
				l, err := s.Try(ctx, "id")
				if want == 10 && err == nil {
					mustRelease(t, l)
				} else if !errors.Is(err, ErrFull) {
					t.Fatalf("%v", err)
				}
			}
			if n := st.asked("acquire") - before; n != want {
				t.Fatalf("10 tries asked the store %d times, want %d", n, want)
			}
		}
		a, b := mustTry(t, s, "id"), mustTry(t, other, "id")
		asked(1)
		if r := s.TryAcquire(ctx, "id"); r.Acquired || r.Active != 2 || r.Max != 2 {
			t.Errorf("%+v", r)
		}
		time.Sleep(100 * time.Millisecond)
		asked(1)
		mustRelease(t, a) // by this process: believed no longer
		asked(10)
		a = mustTry(t, s, "id")
		asked(1)
		if _, err := other.Revoke(ctx, "id", b.SlotID()); err != nil {
			t.Fatal(err)
		}
		asked(0) // nobody told this process
		time.Sleep(100 * time.Millisecond)
		asked(10)
		b = mustTry(t, other, "id")
		asked(1)
		s.ForceRelease(ctx, "id")
		asked(10)
		ends(t, a, ErrLeaseLost)
		if err := s.SetLimit(ctx, "id", 0); err != nil {
			t.Fatal(err)
		}
		asked(1)
		if err := s.ResetLimit(ctx, "id"); err != nil {
			t.Fatal(err)
		}
		asked(10)

		// One who is refused two slots says nothing about one.
		mustTry(t, s, "id")
		if _, err := s.Try(ctx, "id", Weight(2)); !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		if n := st.asked("acquire"); n > 0 {
			mustTry(t, s, "id")
		}
		_ = b
		if n := s.Stats(); n.KnownFull == 0 || n.Refused <= n.KnownFull {
			t.Errorf("%+v", n)
		}
	})
}

func TestKnownFullIsNotBelievedBeyondALapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, KnownFull: time.Hour})
		if _, err := st.Store.Acquire(context.Background(), &store.Request{ID: "id", SlotID: "killed", Weight: 1, Limit: 1, TTL: time.Second}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Try(context.Background(), "id"); !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		mustTry(t, s, "id")
	})
}

// late is a store whose refusals take a while to come back.
type late struct {
	store.Store
	refused, goOn chan struct{}
}

func (s late) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	d, err := s.Store.Acquire(ctx, r)
	if d.Outcome == store.Full {
		s.refused <- struct{}{}
		<-s.goOn
	}
	return d, err
}

// A refusal that was decided before a release, and heard of after it, was believed: a
// free slot stayed free for as long as KnownFull.
func TestARefusalFromBeforeAReleaseWasBelieved(t *testing.T) {
	for _, handOver := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			st := late{newShaky(), make(chan struct{}), make(chan struct{})}
			s := open(t, Options{Store: st, Limit: 1, KnownFull: time.Hour, TTL: time.Hour, AsyncRelease: handOver})
			held := mustTry(t, s, "id")
			got := make(chan error)
			go func() {
				_, err := s.Try(context.Background(), "id")
				got <- err
			}()
			<-st.refused
			mustRelease(t, held)
			synctest.Wait()
			st.goOn <- struct{}{}
			if err := <-got; !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
			mustTry(t, s, "id")
		})
	}
}

func TestKnownFullIsBounded(t *testing.T) {
	s := open(t, Options{Limit: 1, KnownFull: time.Hour, LimitFunc: nil})
	for i := range knownMax + 10 {
		id := fmt.Sprint("id", i)
		s.known.learn(&FullError{ID: id}, 1, s.known.mark(id))
		if n := len(s.known.ids); n > knownMax {
			t.Fatalf("%d refusals are remembered", n)
		}
	}
}

func BenchmarkTryRelease(b *testing.B) {
	s := open(b, Options{Limit: 1 << 20})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		l, err := s.Try(ctx, "id")
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkKnownFull(b *testing.B) {
	s := open(b, Options{Limit: 1, KnownFull: time.Hour, TTL: time.Hour})
	ctx := context.Background()
	mustTry(b, s, "id")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Try(ctx, "id"); err == nil {
			b.Fatal("granted")
		}
	}
}

// From a release to the next in line of the same process.
func BenchmarkAsyncRelease(b *testing.B) {
	s := open(b, Options{Limit: 1, Queue: 10})
	ctx := context.Background()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l, err := s.Acquire(ctx, "id")
			if err != nil {
				b.Error(err)
				return
			}
			if err := l.Release(ctx); err != nil {
				b.Error(err)
			}
		}
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

// A lease ended while it was being registered: the registration came to the store after
// the release, and nobody held the slot for one TTL.
func TestARegistrationUnderWayLeftAGhost(t *testing.T) {
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

// The same, with a registration that was given up, and was on its way all the same.
func TestARegistrationThatWasGivenUpLeftAGhost(t *testing.T) {
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
