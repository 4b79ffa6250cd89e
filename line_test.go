package gotsem

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 1, Queue: 50})
		l := mustTry(t, s, "id")
		ws := make([]*queued, 50)
		for i := range ws {
			ws[i] = queue(s, "id")
			time.Sleep(time.Duration(rand.N(100)) * time.Millisecond)
		}
		stands(t, s, "id", 1, 50)
		if n := s.Stats().Waiting; n != 50 {
			t.Errorf("%d wait, want 50", n)
		}
		fence := l.Fence()
		for i, w := range ws {
			began := time.Now()
			mustRelease(t, l)
			l = w.holds(t) // no time passes: a release wakes, nobody polls
			if !w.at.Equal(began) {
				t.Fatalf("waiter %d was served %v after the release", i, w.at.Sub(began))
			}
			if l.Fence() <= fence {
				t.Fatalf("fence %d after %d", l.Fence(), fence)
			}
			fence = l.Fence()
			if i+1 < len(ws) && ws[i+1].answered() {
				t.Fatalf("waiter %d was served with waiter %d", i+1, i)
			}
		}
		mustRelease(t, l)
		stands(t, s, "id", 0, 0)
		if st := s.Stats(); st.Granted != 51 || st.Queued != 50 || st.Released != 51 || st.Held != 0 || st.Waiting != 0 || st.Waited <= 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestTheLineIsBounded(t *testing.T) {
	for _, c := range []struct {
		name               string
		limit, queue, want int
	}{{"as many as the limit", 3, 0, 3}, {"as said", 1, 5, 5}, {"nobody", 2, -1, 0}} {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, Options{Limit: c.limit, Queue: c.queue, TTL: 10 * time.Second})
			mustTry(t, s, "id", Weight(c.limit))
			var ws []*queued
			for range c.want {
				ws = append(ws, queue(s, "id"))
			}
			_, err := s.Acquire(context.Background(), "id")
			var full *FullError
			if !errors.As(err, &full) {
				t.Fatalf("%s: %v", c.name, err)
			}
			if inLine := c.want > 0; errors.Is(err, ErrQueueFull) != inLine || errors.Is(err, ErrFull) == inLine || errors.Is(err, ErrWaitTooLong) {
				t.Errorf("%s: %v", c.name, err)
			}
			if full.ID != "id" || full.Active != c.limit || full.Limit != c.limit || full.Waiting != c.want || full.NextLapse != 10*time.Second {
				t.Errorf("%s: %+v", c.name, full)
			}
			for _, w := range ws {
				if w.answered() {
					t.Errorf("%s: %v", c.name, w.err)
				}
				w.cancel()
			}
		})
	}
}

func TestErrorsSayWhatAndHowMuch(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{&FullError{ID: "a\nb", Active: 3, Limit: 3}, `gotsem: "a\nb" is full: 3 of 3 held, 0 waiting`},
		{&FullError{ID: "id", Active: 3, Limit: 3, Waiting: 2, RetryAfter: 1500 * time.Millisecond, line: true}, `gotsem: "id" is full, and so is its line: 3 of 3 held, 2 waiting; try again in about 1.5s`},
		{&FullError{ID: "id", Active: 3, Limit: 3, waited: time.Second}, `gotsem: "id" is still full after 1s: 3 of 3 held, 0 waiting`},
		{&FullError{ID: "id"}, `gotsem: "id" is paused: 0 of 0 held, 0 waiting`},
		{&RecoveringError{ID: "id", RetryAfter: time.Second}, `gotsem: the store of "id" lost its memory; grants are made again in 1s, when the holders have re-registered`},
		{&unavailable{id: "id", cause: errAway}, `gotsem: "id": the store could not be asked: connection refused`},
		{&unavailable{id: "id", cause: errAway, unsent: true}, `gotsem: "id": the store is known to be unreachable and is being probed: connection refused`},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
	if err := (&RecoveringError{}); !errors.Is(err, ErrRecovering) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrFull) {
		t.Error("recovering is neither an outage nor full")
	}
	if err := (&unavailable{cause: errAway}); !errors.Is(err, ErrUnavailable) || !errors.Is(err, errAway) || errors.Is(err, ErrFull) {
		t.Error("unavailable is not full, and has its cause")
	}
}

func TestMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 1, Queue: 5, KnownFull: time.Minute})
		l := mustTry(t, s, "id")
		began := time.Now()
		_, err := s.Acquire(context.Background(), "id", MaxWait(2500*time.Millisecond))
		if d := time.Since(began); d != 2500*time.Millisecond {
			t.Errorf("waited %v", d)
		}
		if !errors.Is(err, ErrFull) || !errors.Is(err, ErrWaitTooLong) || errors.Is(err, ErrQueueFull) || !strings.Contains(err.Error(), "still full after 2.5s") {
			t.Errorf("%v", err)
		}
		synctest.Wait()
		stands(t, s, "id", 1, 0)
		for _, d := range []time.Duration{0, -1} {
			began = time.Now()
			_, err = s.Acquire(context.Background(), "id", MaxWait(d))
			if !errors.Is(err, ErrFull) || time.Since(began) != 0 {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
		w := queue(s, "id", MaxWait(time.Minute))
		time.Sleep(30 * time.Second)
		mustRelease(t, l)
		w.holds(t)
	})
}

// A refusal of one who waited is not what others are told who did not.
func TestAKnownRefusalIsNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 1, KnownFull: time.Minute})
		mustTry(t, s, "id")
		if _, err := s.Acquire(context.Background(), "id", MaxWait(time.Second)); !errors.Is(err, ErrWaitTooLong) {
			t.Fatal(err)
		}
		_, err := s.Try(context.Background(), "id")
		if !errors.Is(err, ErrFull) || errors.Is(err, ErrWaitTooLong) {
			t.Errorf("a try, which does not wait: %v", err)
		}
	})
}

func TestNobodyOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 4, Queue: 10})
		a := mustTry(t, s, "id", Weight(3))
		w := queue(s, "id", Weight(2))
		if _, err := s.Try(context.Background(), "id"); !errors.Is(err, ErrFull) { // one is free
			t.Fatal(err)
		}
		if r := s.TryAcquire(context.Background(), "id"); r.Acquired || r.Active != 3 || r.Max != 4 {
			t.Fatalf("%+v", r)
		}
		light := queue(s, "id")
		time.Sleep(5 * time.Second)
		if w.answered() || light.answered() {
			t.Fatal("granted")
		}
		mustRelease(t, a)
		w.holds(t)
		light.holds(t)
	})
}

func TestWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 4, Queue: 10})
		var singles []*Lease
		for range 4 {
			singles = append(singles, mustTry(t, s, "id"))
		}
		b := queue(s, "id", Weight(3))
		c := queue(s, "id")
		mustRelease(t, singles[0])
		mustRelease(t, singles[1])
		if b.answered() || c.answered() {
			t.Fatal("granted too early, or overtaken")
		}
		b2 := queue(s, "id", Weight(4))
		d := queue(s, "id")
		mustRelease(t, singles[2])
		if l := b.holds(t); l.Weight() != 3 {
			t.Errorf("weight %d", l.Weight())
		}
		if c.answered() {
			t.Fatal("4 of 4 are held")
		}
		mustRelease(t, b.lease)
		c.holds(t)
		if b2.answered() || d.answered() {
			t.Fatal("2 are held, 4 wanted")
		}
		b2.cancel() // and with no further release
		d.holds(t)
		b2.was(t, context.Canceled)
		if _, err := s.Try(context.Background(), "id", Weight(5)); !errors.Is(err, ErrTooHeavy) || !strings.Contains(err.Error(), "weight 5, limit 4") {
			t.Errorf("%v", err)
		}
		if _, err := s.Acquire(context.Background(), "id", Weight(5)); !errors.Is(err, ErrTooHeavy) {
			t.Errorf("%v", err)
		}
		stands(t, s, "id", 3, 0)
		heavy := queue(s, "id", Weight(4))
		light := queue(s, "id", Weight(2))
		if err := s.SetLimit(context.Background(), "id", 3); err != nil {
			t.Fatal(err)
		}
		heavy.was(t, ErrTooHeavy) // at once, not at its next poll
		mustRelease(t, d.lease)
		mustRelease(t, c.lease)
		light.holds(t)
	})
}

func TestFiveThousandAtOnce(t *testing.T) {
	s := open(t, Options{Limit: 5000})
	l := mustTry(t, s, "id", Weight(5000))
	stands(t, s, "id", 5000, 0)
	mustRelease(t, l)
	stands(t, s, "id", 0, 0)
}

func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 1, Queue: 5})
		l := mustTry(t, s, "id")
		b, c := queue(s, "id"), queue(s, "id")
		time.Sleep(1234 * time.Millisecond)
		b.cancel()
		b.was(t, context.Canceled)
		if !strings.Contains(b.err.Error(), "gave up after 1.234s in line") {
			t.Errorf("%v", b.err)
		}
		stands(t, s, "id", 1, 1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := s.Acquire(ctx, "id"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		synctest.Wait()
		stands(t, s, "id", 1, 1)
		if n := s.Stats().GaveUp; n != 2 {
			t.Errorf("%d gave up", n)
		}
		mustRelease(t, l)
		c.holds(t)
		stands(t, s, "id", 1, 0)
	})
}

// B gives up while A releases: either B has the slot, or C has it at once.
func TestCancelMeetsGrant(t *testing.T) {
	rounds := 10_000
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 1, Queue: 5})
		granted := 0
		for round := range rounds {
			id := fmt.Sprint("id", round%7)
			a := mustTry(t, s, id)
			b, c := queue(s, id), queue(s, id)
			began := time.Now()
			var both sync.WaitGroup
			both.Go(func() {
				for range rand.N(8) {
					runtime.Gosched()
				}
				b.cancel()
			})
			both.Go(func() {
				for range rand.N(8) {
					runtime.Gosched()
				}
				mustRelease(t, a)
			})
			both.Wait()
			if !b.answered() {
				t.Fatalf("round %d: B has no answer", round)
			}
			if b.err == nil {
				granted++
				if c.answered() {
					t.Fatalf("round %d: both hold", round)
				}
				mustRelease(t, b.lease)
			} else if !errors.Is(b.err, context.Canceled) {
				t.Fatalf("round %d: %v", round, b.err)
			}
			mustRelease(t, c.holds(t))
			synctest.Wait()
			stands(t, s, id, 0, 0)
			if d := time.Since(began); d != 0 {
				t.Fatalf("round %d took %v", round, d)
			}
		}
		if granted == 0 || granted == rounds {
			t.Errorf("B was granted in %d of %d rounds: cancel and grant did not meet", granted, rounds)
		}
		t.Logf("B was granted in %d of %d rounds", granted, rounds)
	})
}

func TestACtxThatIsOverAcquiresNothing(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Hour))
	defer cancel()
	for _, policy := range []Outage{Local, Open, Closed} {
		for _, known := range []time.Duration{0, time.Hour} {
			st := newShaky()
			s := open(t, Options{Store: st, Limit: 1, Outage: policy, KnownFull: known})
			for _, full := range []bool{false, true} {
				if full {
					mustTry(t, s, "id")
					if _, err := s.Try(context.Background(), "id"); !errors.Is(err, ErrFull) {
						t.Fatal(err)
					}
				}
				before := st.asked("acquire")
				for _, ctx := range []context.Context{cancelled, late} {
					_, errTry := s.Try(ctx, "id")
					_, errAcquire := s.Acquire(ctx, "id")
					errDo := s.Do(ctx, "id", func(context.Context) error { t.Error("done"); return nil })
					for verb, err := range map[string]error{"try": errTry, "acquire": errAcquire, "do": errDo} {
						if !errors.Is(err, ctx.Err()) {
							t.Errorf("%v: full %v, known %v: %s: %v, want %v", policy, full, known, verb, err, ctx.Err())
						}
					}
					if r := s.TryAcquire(ctx, "id"); r.Acquired || r.SlotID != "" || r.FailedOpen() {
						t.Errorf("%v: %+v", policy, r)
					}
				}
				if n := st.asked("acquire") - before; n != 0 {
					t.Errorf("%v: the store was asked %d times", policy, n)
				}
			}
			if st := s.Stats(); st.StoreErrors != 0 || st.Outages != 0 || st.FailedOpen != 0 {
				t.Errorf("%v: %+v", policy, st)
			}
		}
	}
}

func TestLimitRaisedLoweredPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		st := newShaky()
		one := open(t, Options{Store: st, Limit: 10, Queue: 20})
		other := open(t, Options{Store: st, Limit: 10, Queue: 20})
		set := func(n int) {
			t.Helper()
			if err := other.SetLimit(ctx, "id", n); err != nil {
				t.Fatal(err)
			}
		}
		var held []*Lease
		for range 10 {
			held = append(held, mustTry(t, one, "id"))
		}
		var ws []*queued
		for i := range 5 {
			ws = append(ws, queue([]*Semaphore{one, other}[i%2], "id"))
		}
		set(4)
		for _, l := range held {
			lives(t, l)
		}
		for range 6 {
			mustRelease(t, held[0])
			held = held[1:]
			if ws[0].answered() {
				t.Fatalf("granted with %d held of 4", len(held))
			}
		}
		if _, err := one.Try(ctx, "id"); !errors.Is(err, ErrFull) { // it remembers 10
			t.Fatal(err)
		}
		mustRelease(t, held[0])
		held = append(held[1:], ws[0].holds(t))
		set(7) // no release, and no time
		held = append(held, ws[1].holds(t), ws[2].holds(t), ws[3].holds(t))
		if ws[4].answered() {
			t.Fatal("7 of 7 are held")
		}
		set(0)
		for _, l := range held {
			mustRelease(t, l)
		}
		time.Sleep(5 * time.Second)
		if ws[4].answered() {
			t.Fatal("the id is paused")
		}
		var full *FullError
		if _, err := one.Try(ctx, "id"); !errors.As(err, &full) || !strings.Contains(err.Error(), "paused") {
			t.Fatal(err)
		}
		if err := one.ResetLimit(ctx, "id"); err != nil {
			t.Fatal(err)
		}
		ws[4].holds(t)
		if u, err := one.Usage(ctx, "id"); err != nil || u.Limit != 10 || u.LimitSet {
			t.Errorf("%+v, %v", u, err)
		}
	})
}

// A holder is killed, and nobody else asks for anything.
func TestAKilledHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		for i := range 2 {
			if _, err := st.Store.Acquire(context.Background(), &store.Request{ID: "id", SlotID: fmt.Sprint("killed", i), Weight: 1, Limit: 2, TTL: 2 * time.Second}); err != nil {
				t.Fatal(err)
			}
		}
		s := open(t, Options{Store: only{st}, Limit: 2})
		began := time.Now()
		l, err := s.Acquire(context.Background(), "id")
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d < 2*time.Second || d > 2100*time.Millisecond {
			t.Errorf("held after %v", d)
		}
		mustRelease(t, l)
	})
}

// The process of the first in line stands still for less than a life, and for
// more.
func TestSlowButLive(t *testing.T) {
	for _, c := range []struct {
		name  string
		still time.Duration
		kept  bool
	}{{"less than a life", 1500 * time.Millisecond, true}, {"more than a life", 5 * time.Second, false}} {
		synctest.Test(t, func(t *testing.T) {
			st := newShaky()
			stalls := newShaky()
			stalls.Store = st.Store // the same place
			quick := open(t, Options{Store: st, Limit: 1, Queue: 5})
			slow := open(t, Options{Store: only{stalls}, Limit: 1, Queue: 5})
			l := mustTry(t, quick, "id")
			b := queue(slow, "id")
			c2 := queue(quick, "id")
			time.Sleep(10 * time.Millisecond)
			var polled atomic.Bool
			stalls.hooked(func(verb, _ string) {
				if verb == "acquire" && !polled.Swap(true) {
					time.Sleep(c.still)
				}
			})
			time.Sleep(pollEvery + c.still/2)
			if c.kept {
				time.Sleep(c.still)
				mustRelease(t, l)
				time.Sleep(pollEvery)
				b.holds(t)
				if c2.answered() {
					t.Errorf("%s: %v", c.name, c2.err)
				}
				mustRelease(t, b.lease)
				c2.holds(t)
				return
			}
			// b is dead for the store, or will not claim: c is next.
			mustRelease(t, l)
			time.Sleep(store.Claim)
			synctest.Wait()
			l = c2.holds(t)
			d := queue(quick, "id")
			time.Sleep(c.still)
			if b.answered() {
				t.Fatalf("%s: it believes an old grant: %v, %v", c.name, b.lease, b.err)
			}
			mustRelease(t, l)
			time.Sleep(pollEvery)
			b.holds(t) // by its old ticket, before d
			if d.answered() {
				t.Errorf("%s: overtaken", c.name)
			}
		})
	}
}
