package gotsem

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// down makes a store refuse, and has s find out.
func down(t *testing.T, s *Semaphore, st *shaky) {
	t.Helper()
	st.is(refuses)
	for range breakerFailures {
		if _, err := ask(s, "nobody's"); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
	}
	if !s.Stats().Down {
		t.Fatal("the store is away, and not known to be")
	}
}

// ask asks the store for a slot, and does nothing about the answer.
func ask(s *Semaphore, id string) (store.Decision, error) {
	return s.gate.acquire(context.Background(), &store.Request{ID: id, SlotID: s.slotID(), Weight: 1, Limit: 1, TTL: time.Millisecond})
}

// up makes it answer again, and waits until s has found out.
func up(t *testing.T, s *Semaphore, st *shaky) {
	t.Helper()
	st.is(well)
	began := time.Now()
	for s.Stats().Down {
		if time.Since(began) > 2*time.Second {
			t.Fatal("the store answers for 2 s, and is not believed to")
		}
		time.Sleep(10 * time.Millisecond)
	}
	synctest.Wait()
}

func TestFiveFailuresOpenTheBreaker(t *testing.T) {
	for _, how := range []mood{refuses, hangs, forgetful} {
		synctest.Test(t, func(t *testing.T) {
			st := newShaky()
			var log logged
			s := open(t, Options{Store: st, Limit: 100, Outage: Closed, StoreTimeout: 10 * time.Millisecond, Logger: log.logger()})
			ctx := context.Background()
			mustRelease(t, mustTry(t, s, "id"))
			st.is(how)
			for i := range breakerFailures {
				// The background release of what may have been granted fails too, and counts.
				if i <= breakerFailures/2 && s.Stats().Down {
					t.Fatalf("%v: down after %d failures", how, i)
				}
				began := time.Now()
				if _, err := s.Try(ctx, "id"); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrFull) {
					t.Fatalf("%v: %v", how, err)
				}
				if d := time.Since(began); d > 10*time.Millisecond {
					t.Errorf("%v: waited %v", how, d)
				}
			}
			if st := s.Stats(); !st.Down || st.Outages != 1 || st.Unavailable != breakerFailures {
				t.Fatalf("%v: %+v", how, st)
			}
			before := st.asked("acquire")
			for range 1000 {
				if _, err := s.Try(ctx, "id"); !errors.Is(err, ErrUnavailable) {
					t.Fatal(err)
				}
			}
			if n := st.asked("acquire") - before; n != 0 {
				t.Errorf("%v: known to be away, and asked %d times", how, n)
			}
			up(t, s, st)
			mustRelease(t, mustTry(t, s, "id"))
			time.Sleep(3 * time.Second)
			if n := st.held(t, "id"); n != 0 {
				t.Errorf("%v: %d slots were left behind", how, n)
			}
		})
	}
}

func TestASecondOfFailuresOpensTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Outage: Closed})
		for range 3 { // a good answer in between begins the count anew
			st.is(refuses)
			_, _ = ask(s, "id")
			time.Sleep(600 * time.Millisecond)
			st.is(well)
			_, _ = ask(s, "id")
			st.is(refuses)
			_, _ = ask(s, "id")
			time.Sleep(600 * time.Millisecond)
			if s.Stats().Down {
				t.Fatal("down")
			}
			st.is(well)
			_, _ = ask(s, "id")
			time.Sleep(probeEvery)
		}
		st.is(refuses)
		_, _ = ask(s, "id")
		time.Sleep(999 * time.Millisecond)
		_, _ = ask(s, "id")
		if s.Stats().Down {
			t.Error("down after failures in 999 ms")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if !s.Stats().Down {
			t.Error("nothing but failures for a second, and not down")
		}
		st.is(well)
	})
}

// A ctx that ran out says something about the store only if nothing else happens
// for as long as that.
func TestShortDeadlinesAreNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1000, Outage: Open})
		st.is(hangs, "acquire")
		for range 50 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			l, err := s.Try(ctx, "id")
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable) || l != nil {
				t.Fatalf("%v, %v", l, err)
			}
			if r := s.TryAcquire(ctx, "id"); r.Acquired {
				t.Fatalf("%+v", r)
			}
			cancel()
		}
		if s.Stats().Down {
			t.Error("down for 50 ms of short deadlines")
		}
		cancelled, cancel := context.WithCancel(context.Background())
		go func() { time.Sleep(time.Millisecond); cancel() }()
		before := s.Stats().StoreErrors
		if _, err := s.Try(cancelled, "id"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if n := s.Stats().StoreErrors; n != before {
			t.Errorf("a cancelled call counts as a failure: %d", n-before)
		}
		st.is(well)
	})
}

func TestProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Outage: Closed, StoreTimeout: 100 * time.Millisecond})
		down(t, s, st)
		st.is(hangs)
		before := st.asked("")
		for range 100 { // busy callers
			time.Sleep(100 * time.Millisecond)
			_, _ = s.Try(context.Background(), "id")
		}
		if n := st.asked("") - before; n < 15 || n > 21 {
			t.Errorf("%d probes in 10 s", n)
		}
		began := time.Now()
		up(t, s, st)
		if d := time.Since(began); d > time.Second {
			t.Errorf("back after %v", d)
		}
		mustTry(t, s, "id")
		before = st.asked("release")
		time.Sleep(5 * time.Second)
		if n := st.asked("release") - before; n != 0 {
			t.Errorf("%d probes of a store that answers", n)
		}
	})
}

// Without calls probing stops, so that an idle semaphore has no goroutine. The next
// call is the probe.
func TestProbingStopsWhenNobodyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Outage: Closed})
		down(t, s, st)
		time.Sleep(probeIdle + time.Second)
		before := st.asked("")
		time.Sleep(time.Hour)
		if n := st.asked("") - before; n != 0 {
			t.Fatalf("%d calls of the store in an hour in which nobody asked", n)
		}
		if _, err := s.Try(context.Background(), "id"); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(DefaultTTL + probeIdle + time.Second) // that one was tried to be undone for a TTL
		st.is(well)
		mustTry(t, s, "id") // finds out by itself, at once
		if s.Stats().Down {
			t.Error("it answers")
		}
	})
}

func TestOneLogLinePerChangeOfState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		var log logged
		s := open(t, Options{Store: st, Limit: 5, Outage: Closed, Logger: log.logger()})
		lines := func(unreachable, again int) {
			t.Helper()
			if u, a := log.with("store unreachable"), log.with("store answers again"); len(u) != unreachable || len(a) != again {
				t.Errorf("%q\nwant %d that say unreachable, %d that it answers again", append(u, a...), unreachable, again)
			}
		}
		for i := range 3 {
			down(t, s, st)
			for range 500 {
				_, _ = s.Try(context.Background(), "id")
				time.Sleep(10 * time.Millisecond)
			}
			lines(i+1, i)
			up(t, s, st)
			time.Sleep(5 * time.Second)
			lines(i+1, i+1)
		}
		if got := log.with("connection refused"); len(got) != 3 {
			t.Errorf("the cause is told: %q", got)
		}
		if got := log.with("after=5"); len(got) != 3 {
			t.Errorf("and how long it took: %q", got)
		}
	})
}

// It comes and goes within a second: what was logged last is how things are.
func TestTheLastLogLineIsTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		var log logged
		s := open(t, Options{Store: st, Limit: 5, Outage: Closed, Logger: log.logger()})
		began := time.Now()
		last := func() string {
			time.Sleep(2 * logEvery)
			log.mu.Lock()
			defer log.mu.Unlock()
			return log.lines[len(log.lines)-1]
		}
		down(t, s, st)
		up(t, s, st) // within half a second
		if line := last(); !contains(line, "answers again") {
			t.Errorf("it answers, and the last line is %q", line)
		}
		down(t, s, st)
		time.Sleep(1300 * time.Millisecond)
		up(t, s, st)
		down(t, s, st) // at once
		if line := last(); !contains(line, "unreachable") {
			t.Errorf("it is away, and the last line is %q", line)
		}
		up(t, s, st)
		for range 10 {
			down(t, s, st)
			up(t, s, st)
		}
		if line := last(); !contains(line, "answers again") {
			t.Errorf("it answers, and the last line is %q", line)
		}
		if n, most := len(log.lines), int(time.Since(began)/logEvery)+1; n > most {
			t.Errorf("%d lines in %v: %q", n, time.Since(began), log.lines)
		}
	})
}

func TestOutageOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Outage: Open, Queue: 3})
		ctx := context.Background()
		before := mustTry(t, s, "id")
		w := queue(s, "id")
		st.is(refuses)
		var ls []*Lease
		for range 20 {
			l := mustTry(t, s, "id")
			if !l.FailedOpen() || l.Fence() != 0 || !l.Expires().IsZero() || l.SlotID() != failedOpenID {
				t.Fatalf("%+v", l)
			}
			ls = append(ls, l)
		}
		if r := s.TryAcquire(ctx, "id"); !r.Acquired || !r.FailedOpen() || r.SlotID == "" || r.Active != 0 || r.Max != 1 {
			t.Errorf("%+v", r)
		}
		time.Sleep(pollEvery)
		if l := w.holds(t); !l.FailedOpen() { // who waits goes by the policy too
			t.Error("it was granted without the store")
		}
		if l, err := s.Acquire(ctx, "id"); err != nil || !l.FailedOpen() {
			t.Error(err)
		}
		time.Sleep(DefaultTTL)
		if !errors.Is(context.Cause(before.Context()), ErrLeaseLost) {
			t.Errorf("not renewed for a TTL: %v", context.Cause(before.Context()))
		}
		for _, l := range ls {
			if l.Context().Err() != nil {
				t.Fatal("over")
			}
			mustRelease(t, l)
			mustRelease(t, l)
		}
		s.Release(ctx, "id", failedOpenID)
		if st := s.Stats(); st.FailedOpen != 23 || st.Held != 2 {
			t.Errorf("%+v", st)
		}
		if n := s.ActiveCount(ctx, "id"); n != 0 {
			t.Errorf("%d", n)
		}
		up(t, s, st)
		if l := mustTry(t, s, "id"); l.FailedOpen() {
			t.Error("the store answers")
		}
		time.Sleep(5 * time.Second)
		stands(t, s, "id", 1, 0)
	})
}

// A limit of zero grants nothing, in an outage either.
func TestOutageOpenOfALimitOfZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		o := Options{Store: st, Outage: Open, Limit: 0}
		s := newSemaphore(o.withDefaults())
		st.is(refuses)
		for range 10 {
			if r := s.TryAcquire(context.Background(), "id"); r.Acquired {
				t.Fatalf("%+v", r)
			}
		}
		st.is(well)
		_ = s.Close()
	})
}

func TestOutageClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Outage: Closed, Queue: 3})
		l := mustTry(t, s, "id")
		w := queue(s, "id")
		down(t, s, st)
		time.Sleep(pollEvery)
		w.was(t, ErrUnavailable)
		if _, err := s.Acquire(context.Background(), "id"); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrFull) {
			t.Error(err)
		}
		if r := s.TryAcquire(context.Background(), "id"); r.Acquired {
			t.Errorf("%+v", r)
		}
		lives(t, l)
		up(t, s, st)
		time.Sleep(store.Life + store.Claim)
		stands(t, s, "id", 1, 0)
		mustRelease(t, l)
		mustTry(t, s, "id")
	})
}

func TestMisconfiguredIsNoOutage(t *testing.T) {
	for _, policy := range []Outage{Local, Open, Closed} {
		synctest.Test(t, func(t *testing.T) {
			st := newShaky()
			var log logged
			s := open(t, Options{Store: st, Limit: 5, Outage: policy, Logger: log.logger()})
			ctx := context.Background()
			st.is(wrong)
			for range 20 {
				l, err := s.Try(ctx, "id")
				if l != nil || !errors.Is(err, store.ErrConfig) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrFull) {
					t.Fatalf("%v: %v, %v", policy, l, err)
				}
				if _, err := s.Acquire(ctx, "id"); !errors.Is(err, store.ErrConfig) {
					t.Fatalf("%v: %v", policy, err)
				}
				if r := s.TryAcquire(ctx, "id"); r.Acquired {
					t.Fatalf("%v: %+v", policy, r)
				}
			}
			if st := s.Stats(); st.Down || st.Outages != 0 || st.FailedOpen != 0 || st.Local != 0 {
				t.Errorf("%v: %+v", policy, st)
			}
			if n := len(log.with("the store refuses")); n != 1 {
				t.Errorf("%v: %d lines for 60 calls in no time", policy, n)
			}
			st.is(well)
		})
	}
}

func TestAReleaseThatIsNotTaken(t *testing.T) {
	for _, how := range []mood{refuses, hangs} {
		synctest.Test(t, func(t *testing.T) {
			st := newShaky()
			s := open(t, Options{Store: st, Limit: 5, Outage: Closed})
			l := mustTry(t, s, "id")
			r := s.TryAcquire(context.Background(), "id")
			st.is(how)
			began := time.Now()
			if err := l.Release(context.Background()); !errors.Is(err, ErrUnavailable) || !contains(err.Error(), "released in the background") {
				t.Errorf("%v", err)
			}
			if d := time.Since(began); d > DefaultStoreTimeout {
				t.Errorf("waited %v", d)
			}
			s.Release(context.Background(), "id", r.SlotID)
			if err := l.Release(context.Background()); err != nil {
				t.Errorf("a second time: %v", err)
			}
			time.Sleep(5 * time.Second)
			if n := st.held(t, "id"); n != 2 {
				t.Fatalf("%d held", n)
			}
			st.is(well)
			time.Sleep(2 * time.Second) // much less than the TTL
			if n := st.held(t, "id"); n != 0 {
				t.Errorf("%v: %d held, 2 s after the store came back", how, n)
			}
		})
	}
}

// Releases that nobody waits for are as safe as the others.
func TestAsyncRelease(t *testing.T) {
	for _, how := range []mood{well, refuses, hangs, forgetful} {
		synctest.Test(t, func(t *testing.T) {
			st := newShaky()
			s := open(t, Options{Store: st, Limit: 20, Outage: Closed, AsyncRelease: true})
			for range 2 { // in the second round it is known to be away
				var ls []*Lease
				var rs []AcquireResult
				for range 10 {
					ls = append(ls, mustTry(t, s, "id"))
					rs = append(rs, s.TryAcquire(context.Background(), "id"))
				}
				st.is(how)
				for i := range ls {
					began := time.Now()
					mustRelease(t, ls[i])
					s.Release(context.Background(), "id", rs[i].SlotID)
					if time.Since(began) != 0 {
						t.Errorf("%v: waited %v", how, time.Since(began))
					}
				}
				time.Sleep(3 * time.Second)
				if n := st.held(t, "id"); how == well && n != 0 || (how == refuses || how == hangs) && n != 20 {
					t.Errorf("%v: %d held", how, n)
				}
				if how != well {
					up(t, s, st)
				}
				time.Sleep(2 * time.Second)
				if n := st.held(t, "id"); n != 0 {
					t.Errorf("%v: %d held", how, n)
				}
			}
			if st := s.Stats(); st.Released != 40 {
				t.Errorf("%v: %+v", how, st)
			}
		})
	}
}

// Granted, and not on enough replicas: no lease, and nothing left behind.
func TestAGrantThatIsNotReplicated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 5, Outage: Open, Queue: 5})
		ctx := context.Background()
		st.is(lonely, "acquire")
		_, errTry := s.Try(ctx, "id")
		_, errAcquire := s.Acquire(ctx, "id")
		for _, err := range []error{errTry, errAcquire} {
			if !errors.Is(err, store.ErrNotReplicated) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrFull) {
				t.Errorf("%v", err)
			}
		}
		if r := s.TryAcquire(ctx, "id"); r.Acquired {
			t.Errorf("%+v", r)
		}
		synctest.Wait()
		if n := st.held(t, "id"); n != 0 {
			t.Errorf("%d held", n)
		}
		if st := s.Stats(); st.Down || st.StoreErrors != 0 || st.FailedOpen != 0 {
			t.Errorf("%+v", st)
		}
		st.is(well)
	})
}

// The small face says in the log what it cannot answer.
func TestWhatTheSmallFaceLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		var log logged
		s := open(t, Options{Store: st, Limit: 5, Outage: Open, Logger: log.logger(), KnownFull: time.Second})
		ctx := context.Background()
		st.is(wrong)
		if n := s.ActiveCount(ctx, "id"); n != 0 {
			t.Errorf("%d", n)
		}
		s.ForceRelease(ctx, "id")
		s.TryAcquire(ctx, "")
		for _, want := range []string{"no active count", "not cleared", "not acquired"} {
			if len(log.with(want)) != 1 {
				t.Errorf("%q in %q", want, log.lines)
			}
		}
		st.is(well)
		r := s.TryAcquire(ctx, "id")
		st.is(refuses)
		if n := s.ActiveCount(ctx, "id"); n != 0 {
			t.Errorf("%d", n)
		}
		s.Release(ctx, "id", r.SlotID)
		st.is(well)
		time.Sleep(time.Second)
		stands(t, s, "id", 0, 0)
	})
}

// The store granted, and the answer got lost: the slot is given back at once.
func TestALostReplyLeaksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 5, Outage: Closed, Queue: 5})
		ctx := context.Background()
		st.is(forgetful, "acquire")
		_, errTry := s.Try(ctx, "id")
		_, errAcquire := s.Acquire(ctx, "id")
		if !errors.Is(errTry, ErrUnavailable) || !errors.Is(errAcquire, ErrUnavailable) {
			t.Fatal(errTry, errAcquire)
		}
		if r := s.TryAcquire(ctx, "id"); r.Acquired {
			t.Fatalf("%+v", r)
		}
		synctest.Wait()
		if n := st.held(t, "id"); n != 0 {
			t.Errorf("%d held", n)
		}
		st.is(well)
	})
}

// The acquire was abandoned and reaches the store after the release: once more, a
// second later.
func TestALateAcquireLeaksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 5, Outage: Closed})
		st.is(hangs, "acquire")
		var slotID string
		if _, err := s.Try(context.Background(), "id"); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		s.gate.backlog.mu.Lock()
		for id := range s.gate.backlog.pending {
			slotID = id
		}
		s.gate.backlog.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		if _, err := st.Store.Acquire(context.Background(), &store.Request{ID: "id", SlotID: slotID, Weight: 1, Limit: 1, TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if n := st.held(t, "id"); n != 1 {
			t.Fatalf("%d held", n)
		}
		time.Sleep(backlogAgain)
		if n := st.held(t, "id"); n != 0 {
			t.Errorf("%d held", n)
		}
		st.is(well)
	})
}

// A waiter's question got lost, and its next one is granted. What was started to
// undo the first must not take the lease away.
func TestALostAnswerInLineDoesNotUndoTheGrant(t *testing.T) {
	for _, how := range []mood{refuses, forgetful} {
		synctest.Test(t, func(t *testing.T) {
			st := newShaky()
			s := open(t, Options{Store: st, Limit: 1, Queue: 5, Outage: Local})
			st.is(how, "acquire")
			w := queue(s, "id")
			st.is(well)
			time.Sleep(2 * localPoll)
			l := w.holds(t)
			time.Sleep(5 * time.Second)
			if n := st.held(t, "id"); n != 1 {
				t.Errorf("%v: a lease is held, and the store keeps %d slots", how, n)
			}
			lives(t, l)
		})
	}
}

func TestTheBacklogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, TTL: time.Minute, Outage: Closed})
		down(t, s, st)
		for i := range backlogMax + 500 {
			s.Release(context.Background(), "id", fmt.Sprint("s", i))
		}
		if n := owed(s); n != backlogMax {
			t.Errorf("%d are owed", n)
		}
		time.Sleep(30 * time.Second)
		if n := owed(s); n != backlogMax {
			t.Errorf("%d are owed, half a TTL later", n)
		}
		time.Sleep(31 * time.Second)
		if n := owed(s); n != 0 {
			t.Errorf("%d are owed, though all have lapsed", n)
		}
		st.is(well)
	})
}

func owed(s *Semaphore) int {
	s.gate.backlog.mu.Lock()
	defer s.gate.backlog.mu.Unlock()
	return len(s.gate.backlog.pending)
}

func TestCloseWaitsForTheBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 500, Outage: Closed})
		for range 300 {
			mustTry(t, s, "id")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := st.held(t, "id"); n != 0 {
			t.Errorf("%d held", n)
		}
	})
}

func TestCloseIsBounded(t *testing.T) {
	for _, how := range []mood{refuses, hangs} {
		for _, timeout := range []time.Duration{DefaultStoreTimeout, 5 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				st := newShaky()
				s := open(t, Options{Store: st, Limit: 5, Outage: Closed, Queue: 5, StoreTimeout: timeout})
				l := mustTry(t, s, "id")
				mustTry(t, s, "id", Weight(4))
				st.is(how, "renew")
				time.Sleep(DefaultTTL / 3) // a renewal is under way
				w := queue(s, "id")
				st.is(how)
				began := time.Now()
				err := s.Close()
				if err == nil || !contains(err.Error(), "did not take back") || !contains(err.Error(), "lapse by themselves within 30s") {
					t.Errorf("%v: %v", how, err)
				}
				if d := time.Since(began); d > closeTimeout {
					t.Errorf("%v, with a StoreTimeout of %v: closed after %v", how, timeout, d)
				}
				w.was(t, ErrClosed)
				ends(t, l, ErrClosed)
			})
		}
	}
}

// With nothing to give back there is nothing to wait for, however the store is.
func TestCloseWithNothingHeldTakesNoTime(t *testing.T) {
	for _, how := range []mood{well, refuses, hangs} {
		synctest.Test(t, func(t *testing.T) {
			st := newShaky()
			s := open(t, Options{Store: st, Limit: 5, Outage: Closed})
			mustRelease(t, mustTry(t, s, "id"))
			st.is(how)
			began := time.Now()
			if err := s.Close(); err != nil {
				t.Errorf("%v: %v", how, err)
			}
			if d := time.Since(began); d > 0 {
				t.Errorf("%v: closed after %v", how, d)
			}
		})
	}
}

// deaf is a store whose listening takes as long as connecting does.
type deaf struct {
	*shaky
	connected chan struct{}
}

func (d deaf) OnWake(func(store.Wakeup)) func() { return func() { <-d.connected } }

func TestCloseDoesNotWaitForASubscriptionBeingConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := deaf{newShaky(), make(chan struct{})}
		s := open(t, Options{Store: st, Limit: 5})
		mustTry(t, s, "id")
		began := time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > closeTimeout {
			t.Errorf("closed after %v", d)
		}
		if n := st.held(t, "id"); n != 0 {
			t.Errorf("%d held", n)
		}
		close(st.connected)
	})
}

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

// mustLeave releases what the store cannot be told of.
func mustLeave(t *testing.T, l *Lease) {
	t.Helper()
	if err := l.Release(context.Background()); err != nil && !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
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
