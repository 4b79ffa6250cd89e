package gotsem

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

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
				// The background release of what may have been granted fails too, and
				// counts.
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

// An error from the open breaker, which the store was not asked for, names what ails
// the store.
func TestTheOpenBreakerNamesTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Outage: Closed})
		st.is(refuses)
		for range breakerFailures {
			_, _ = s.Try(t.Context(), "id")
		}
		asked := st.asked("acquire")
		_, err := s.Try(t.Context(), "id")
		if st.asked("acquire") != asked || !errors.Is(err, ErrUnavailable) {
			t.Fatalf("the breaker is not open: %v", err)
		}
		if !errors.Is(err, errAway) || !contains(err.Error(), errAway.Error()) {
			t.Errorf("%v: it does not say why", err)
		}
	})
}
