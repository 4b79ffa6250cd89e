package gotsem

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

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
