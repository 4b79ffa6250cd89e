package gotsem

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// The cap, as two processes keep it that cannot ask.
func TestOutageLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		st := newShaky()
		st.processes = 2
		var log logged
		a := open(t, Options{Store: st, Limit: 9, TTL: ttl, Queue: 5, Logger: log.logger()})
		defer func() {
			if t.Failed() {
				t.Logf("%q", log.lines)
			}
		}()
		ctx := context.Background()
		var held []*Lease
		for range 6 {
			held = append(held, mustTry(t, a, "id"))
		}
		synctest.Wait() // the processes were counted
		down(t, a, st)
		if _, err := a.Try(ctx, "id"); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("the other may hold the rest: %v", err)
		}
		// A slot that it held then, and gave back since: the store has not heard.
		gone := held[5]
		if err := gone.Release(ctx); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		l := mustTry(t, a, "id")
		if l.SlotID() != gone.SlotID() || l.Fence() != gone.Fence() || l.FailedOpen() {
			t.Errorf("it goes on with the slot %q, not %q", gone.SlotID(), l.SlotID())
		}
		held[5] = l
		if _, err := a.Try(ctx, "id"); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("once: %v", err)
		}
		w := queue(a, "id") // who waits has the next
		time.Sleep(time.Second)
		if w.answered() {
			t.Fatalf("%v, %v", w.lease, w.err)
		}
		if err := held[4].Release(ctx); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(2 * localPoll)
		held[4] = w.holds(t)

		// After one TTL: its share, floor(9/2), and what it holds above ends.
		time.Sleep(ttl - 1500*time.Millisecond)
		if _, err := a.Try(ctx, "id"); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("within the TTL: %v", err)
		}
		time.Sleep(ttl)
		alive := 0
		for _, l := range held {
			if l.Context().Err() == nil {
				alive++
				if !l.Expires().IsZero() {
					t.Errorf("kept without the store, and expires %v", l.Expires())
				}
			} else if !errors.Is(context.Cause(l.Context()), ErrLeaseLost) {
				t.Errorf("%v", context.Cause(l.Context()))
			}
		}
		if alive != 4 {
			t.Errorf("%d of 9 are kept by one of two", alive)
		}
		if _, err := a.Try(ctx, "id"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("above its share: %v", err)
		}
		var more []*Lease
		for range 4 {
			more = append(more, mustTry(t, a, "other"))
		}
		if _, err := a.Try(ctx, "other"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("above its share: %v", err)
		}
		if _, err := a.Try(ctx, "other", Weight(2)); !errors.Is(err, ErrUnavailable) {
			t.Errorf("above its share: %v", err)
		}
		if more[0].Fence() != 0 || more[0].FailedOpen() {
			t.Errorf("%+v", more[0])
		}
		mustLeave(t, more[3])
		more[3] = mustTry(t, a, "other")
		time.Sleep(5 * ttl)
		for _, l := range more {
			lives(t, l)
		}
		// Back: what goes on is registered.
		up(t, a, st)
		time.Sleep(time.Second)
		if n := st.held(t, "id"); n != 4 {
			t.Errorf("%d held in the store, 4 go on", n)
		}
		if n := st.held(t, "other"); n != 4 {
			t.Errorf("%d held in the store, 4 go on", n)
		}
		time.Sleep(3 * ttl)
		for _, l := range more {
			lives(t, l)
			if l.Expires().IsZero() {
				t.Error("the store knows it, and it expires again")
			}
			mustRelease(t, l)
		}
		stands(t, a, "id", 4, 0)
		stands(t, a, "other", 0, 0)
		if st := a.Stats(); st.Lost != 2 || st.Restored != 8 {
			t.Errorf("%+v", st)
		}
	})
}

// A release was sent and not answered: the store may have heard it, and the slot
// may be somebody else's by now.
func TestOnlyAnUnheardReleaseIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		a := open(t, Options{Store: st, Limit: 1})
		b := open(t, Options{Store: st.Store, Limit: 1})
		l := mustTry(t, a, "id")
		st.is(forgetful, "release")
		if err := l.Release(context.Background()); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		mustTry(t, b, "id")
		st.is(refuses)
		for range breakerFailures {
			if l, err := a.Try(context.Background(), "id"); err == nil {
				t.Fatalf("%q is held by both", l.SlotID())
			}
		}
		st.is(well)
	})
}

func TestOutageLocalOfOneThatNeverHadAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		st.is(refuses)
		s := open(t, Options{Store: st, Limit: 9, TTL: time.Second})
		for range 100 {
			if _, err := s.Try(context.Background(), "id"); !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		st.is(well)
	})
}

// The limit that was set in the store is the one to share; and one that was taken
// off is not.
func TestOutageLocalKnowsTheSetLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Second
		ctx := context.Background()
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 4, TTL: ttl, StoreTimeout: 50 * time.Millisecond})
		count := func(want int) {
			t.Helper()
			l, err := s.Try(ctx, "id")
			for ; errors.Is(err, ErrRecovering); l, err = s.Try(ctx, "id") {
				time.Sleep(store.Pause / 2)
			}
			if err != nil {
				t.Fatal(err)
			}
			mustRelease(t, l)
			synctest.Wait()
			down(t, s, st)
			time.Sleep(ttl)
			var ls []*Lease
			for {
				l, err := s.Try(ctx, "id")
				if err != nil {
					break
				}
				ls = append(ls, l)
			}
			if len(ls) != want {
				t.Errorf("%d admitted, want %d", len(ls), want)
			}
			for _, l := range ls {
				mustLeave(t, l)
			}
			up(t, s, st)
			time.Sleep(2 * ttl)
		}
		count(4)
		if err := s.SetLimit(ctx, "id", 2); err != nil {
			t.Fatal(err)
		}
		count(2)
		if err := s.ResetLimit(ctx, "id"); err != nil {
			t.Fatal(err)
		}
		count(4)
	})
}

// Back from an outage, what was admitted without the store is registered before
// anything new is granted.
func TestHoldersRegisterBeforeNewGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Second
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 3, TTL: ttl, StoreTimeout: 50 * time.Millisecond, Queue: -1})
		mustRelease(t, mustTry(t, s, "id"))
		synctest.Wait()
		down(t, s, st)
		time.Sleep(ttl)
		var held []*Lease
		for range 3 {
			held = append(held, mustTry(t, s, "id"))
		}
		st.is(well)
		var all sync.WaitGroup
		for range 4 { // they ask all the time
			all.Go(func() {
				for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(time.Millisecond) {
					l, err := s.Try(context.Background(), "id")
					if err == nil {
						t.Errorf("3 of 3 are held, and one more was granted: %q", l.SlotID())
						return
					}
					if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrRecovering) && !errors.Is(err, ErrFull) {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		for _, l := range held {
			lives(t, l)
		}
		stands(t, s, "id", 3, 0)
	})
}

// Nobody asked for long, so that nobody probes: the call that finds the store back is
// not granted either.
func TestTheFirstCallAfterALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Second
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 3, TTL: ttl, StoreTimeout: 50 * time.Millisecond, Queue: -1})
		mustRelease(t, mustTry(t, s, "id"))
		synctest.Wait()
		down(t, s, st)
		time.Sleep(ttl)
		for range 3 {
			mustTry(t, s, "id")
		}
		time.Sleep(time.Hour)
		st.is(well)
		if l, err := s.Try(context.Background(), "id"); err == nil {
			t.Errorf("3 of 3 are held, and one more was granted: %q", l.SlotID())
		}
		time.Sleep(5 * time.Second)
		stands(t, s, "id", 3, 0)
	})
}

func TestAPlaceInLineOutlivesABriefOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Queue: 5})
		other := open(t, Options{Store: st.Store, Limit: 1, Queue: 5})
		l := mustTry(t, other, "id")
		b := queue(s, "id")
		c := queue(other, "id")
		down(t, s, st)
		time.Sleep(1500 * time.Millisecond)
		up(t, s, st)
		time.Sleep(time.Second)
		stands(t, other, "id", 1, 2)
		mustRelease(t, l)
		b.holds(t)
		if c.answered() {
			t.Error("overtaken")
		}
	})
}
