package gotsem

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// A debt that is due in a second does not hold up those that are due now.
func TestWhoeverGivesUpIsGoneAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Queue: 2000})
		began := time.Now()
		l := mustTry(t, s, "id")
		s.gate.backlog.add("id", "nobody's", true) // nothing is found, so once more in a second
		synctest.Wait()
		gone := queue(s, "id")
		behind := queue(s, "id")
		gone.cancel()
		gone.was(t, context.Canceled)
		mustRelease(t, l)
		mustRelease(t, behind.holds(t))
		if d := time.Since(began); d != 0 {
			t.Errorf("it took %v", d)
		}
		l = mustTry(t, s, "id")
		var all []*queued
		for range 1000 {
			all = append(all, queue(s, "id"))
		}
		stands(t, s, "id", 1, 1000)
		began = time.Now()
		for _, w := range all {
			w.cancel()
		}
		synctest.Wait()
		stands(t, s, "id", 1, 0)
		if d := time.Since(began); d != 0 {
			t.Errorf("a thousand were gone after %v", d)
		}
		mustRelease(t, l)
	})
}

// A thousand that gave up while others are being given back: workers share them.
func TestGivingBackIsNotOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		st.hooked(func(verb, _ string) {
			if verb == "release" {
				time.Sleep(20 * time.Millisecond) // a slow store
			}
		})
		s := open(t, Options{Store: st, Limit: 5000, Outage: Closed})
		const n = 5000
		for range n {
			r := s.TryAcquire(context.Background(), "id")
			s.gate.backlog.add("id", r.SlotID, false)
		}
		began := time.Now()
		for st.held(t, "id") > 0 {
			time.Sleep(time.Millisecond)
		}
		if d, most := time.Since(began), n/backlogWorkers*22*time.Millisecond; d > most {
			t.Errorf("%d are given back after %v, want at most %v", n, d, most)
		}
	})
}

// Nothing is owed for a question that was never put.
func TestACallThatNeverLeftOwesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Outage: Closed, Queue: 5})
		over, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := s.gate.acquire(over, &store.Request{ID: "id", SlotID: "s", Weight: 1, Limit: 1, TTL: time.Second})
		if !errors.Is(err, context.Canceled) || mayHaveArrived(err) {
			t.Errorf("%v", err)
		}
		down(t, s, st)
		synctest.Wait()
		before := owed(s)
		for range 100 {
			_, _ = s.Try(context.Background(), "id")
			_, _ = s.Acquire(context.Background(), "id")
			s.TryAcquire(context.Background(), "id")
		}
		if n := owed(s) - before; n != 0 {
			t.Errorf("%d are owed for calls that the breaker answered", n)
		}
		st.is(well)
	})
}

// What finds no room in the backlog is counted, and told.
func TestWhatIsLeftToLapseIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		var log logged
		s := open(t, Options{Store: st, Limit: 1, TTL: time.Minute, Outage: Closed, Logger: log.logger()})
		down(t, s, st)
		synctest.Wait()
		room := backlogMax - owed(s)
		const more = 500
		for i := range room + more {
			s.Release(context.Background(), "id", fmt.Sprint("s", i))
		}
		if n := s.Stats().LeftToLapse; n != more {
			t.Errorf("%d of %d are counted", n, more)
		}
		if lines := log.with("left to lapse"); len(lines) != 1 || !contains(lines[0], "waiting=10000") {
			t.Errorf("%q", lines)
		}
		st.is(well)
		time.Sleep(2 * time.Second)
		if n := owed(s); n != 0 {
			t.Errorf("%d are owed, 2 s after the store came back", n)
		}
	})
}

// A call that is under way at Close, and ends after it: what it may have taken is given
// back once, and then nothing runs any more.
func TestNothingRunsOnAfterClose(t *testing.T) {
	for _, how := range []mood{hangs, forgetful} {
		synctest.Test(t, func(t *testing.T) {
			st := newShaky()
			s := open(t, Options{Store: st, Limit: 1, TTL: time.Hour, Outage: Closed})
			st.is(how, "acquire")
			st.hooked(func(verb, _ string) {
				if verb == "acquire" {
					time.Sleep(DefaultStoreTimeout / 2)
				}
			})
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = s.Try(context.Background(), "id")
			}()
			synctest.Wait()
			began := time.Now()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			<-ended
			synctest.Wait()
			b := &s.gate.backlog
			b.mu.Lock()
			if b.running || len(b.pending) != 0 {
				t.Errorf("%v: %v after Close it runs: %v, and %d are owed", how, time.Since(began), b.running, len(b.pending))
			}
			b.mu.Unlock()
			if n := st.held(t, "id"); n != 0 {
				t.Errorf("%v: %d held", how, n)
			}
		})
	}
}

// Close ends what Outage Open admitted, like every other lease.
func TestOpenLeasesEndWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 3, Outage: Open})
		st.is(refuses)
		l, quiet, given := mustTry(t, s, "id"), mustTry(t, s, "id"), mustTry(t, s, "id")
		lives(t, l)
		mustRelease(t, given)
		if !l.FailedOpen() || s.Stats().Held != 2 {
			t.Fatalf("%+v", s.Stats())
		}
		_ = s.Close()
		ends(t, l, ErrClosed)
		ends(t, quiet, ErrClosed)
		if n := s.Stats().Held; n != 0 {
			t.Errorf("%d held", n)
		}
		late := s.openLease(context.Background(), &request{Request: store.Request{ID: "id", Weight: 1}}) // was under way
		ends(t, late, ErrClosed)
		st.is(well)
	})
}

// Who stands in line is not answered by the policy for one question that failed.
func TestAWaiterAsksAgainBeforeThePolicy(t *testing.T) {
	for _, policy := range []Outage{Local, Open, Closed} {
		synctest.Test(t, func(t *testing.T) {
			st := newShaky()
			s := open(t, Options{Store: st, Limit: 1, Queue: 5, Outage: policy})
			l := mustTry(t, s, "id")
			w := queue(s, "id")
			st.hooked(func(verb, _ string) {
				if verb == "acquire" { // this one fails, and the next does not
					st.is(well)
				}
			})
			st.is(refuses, "acquire")
			time.Sleep(pollEvery + 2*localPoll)
			if w.answered() {
				t.Fatalf("%v: %v, %v", policy, w.lease, w.err)
			}
			mustRelease(t, l)
			if got := w.holds(t); got.FailedOpen() {
				t.Errorf("%v: admitted without the store", policy)
			}
		})
	}
}

// checked is a store that has something to say about its set-up.
type checked struct{ *shaky }

func (checked) Check(context.Context, time.Duration) ([]store.Finding, error) {
	return []store.Finding{{What: "eviction", Text: "volatile-ttl"}}, nil
}

func TestWhatIsNotWellIsSaidOnce(t *testing.T) {
	ctx := context.Background()
	for name, use := range map[string]func(s *Semaphore){
		"TryAcquire": func(s *Semaphore) { s.Release(ctx, "id", s.TryAcquire(ctx, "id").SlotID) },
		"Try":        func(s *Semaphore) { mustRelease(t, mustTry(t, s, "id")) },
	} {
		synctest.Test(t, func(t *testing.T) {
			var log logged
			s := open(t, Options{Store: checked{newShaky()}, Limit: 3, Outage: Open, Logger: log.logger()})
			for range 10 {
				use(s)
				synctest.Wait()
			}
			if lines := log.with("volatile-ttl"); len(lines) != 1 {
				t.Errorf("%s: %q", name, lines)
			}
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
		for pending := range s.gate.backlog.pending {
			slotID = pending.slotID
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

// A release of what is in doubt is repeated until nothing can be under way any more:
// for as long as a call may take, where that is long.
func TestAReleaseInDoubtIsRepeatedForAsLongAsACallMayTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 5 * time.Second
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, StoreTimeout: timeout})
		s.gate.backlog.add("id", "late", true)
		time.Sleep(timeout - 10*time.Millisecond)
		r := &store.Request{ID: "id", SlotID: "late", Weight: 1, Limit: 1, TTL: time.Minute}
		if d, err := st.Store.Acquire(t.Context(), r); err != nil || d.Outcome != store.Granted {
			t.Fatalf("%+v, %v", d, err)
		}
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		stands(t, s, "id", 0, 0)
	})
}
