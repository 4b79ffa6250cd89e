package gotsem

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// witness remembers what it is told.
type witness struct {
	mu      sync.Mutex
	answers []Answer
	ends    []End
	calls   map[string]int
	changes []StoreChange
}

func (w *witness) observer() *Observer {
	return &Observer{
		Answered: func(_ context.Context, a Answer) { w.mu.Lock(); defer w.mu.Unlock(); w.answers = append(w.answers, a) },
		Ended:    func(_ context.Context, e End) { w.mu.Lock(); defer w.mu.Unlock(); w.ends = append(w.ends, e) },
		Called: func(c Call) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.calls == nil {
				w.calls = make(map[string]int)
			}
			w.calls[c.Operation] += c.Slots
		},
		Store: func(c StoreChange) { w.mu.Lock(); defer w.mu.Unlock(); w.changes = append(w.changes, c) },
	}
}

// last is the latest answer, of as many as there are to be.
func (w *witness) last(t *testing.T, n int) Answer {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.answers) != n {
		t.Fatalf("told of %d answers, want %d: %+v", len(w.answers), n, w.answers)
	}
	return w.answers[n-1]
}

func TestEveryCallIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w witness
		s := open(t, Options{Limit: 1, Queue: 1, KnownFull: time.Second})
		stop := s.Observe(w.observer())
		ctx := t.Context()
		time.Sleep(time.Millisecond) // an instant of 0 is not known
		l := mustTry(t, s, "id", As(Critical))
		if a := w.last(t, 1); a.ID != "id" || a.Outcome != Granted || a.Source != FromStore || a.Fence != l.Fence() || a.Class != Critical || a.Weight != 1 || a.Queued {
			t.Errorf("%+v", a)
		}
		_, _ = s.Try(ctx, "id")
		if a := w.last(t, 2); a.Outcome != Full || a.Active != 1 || a.Limit != 1 || a.Source != FromStore {
			t.Errorf("%+v", a)
		}
		_, _ = s.Try(ctx, "id")
		if a := w.last(t, 3); a.Outcome != Full || a.Source != FromMemory {
			t.Errorf("%+v", a)
		}
		_, _ = s.Try(ctx, "id", Weight(2))
		if a := w.last(t, 4); a.Outcome != Full && a.Outcome != TooHeavy || a.Weight != 2 {
			t.Errorf("%+v", a)
		}
		_, _ = s.Try(ctx, "")
		if a := w.last(t, 5); a.Outcome != Invalid {
			t.Errorf("%+v", a)
		}
		waiter := queue(s, "id")
		_, _ = s.Acquire(ctx, "id")
		if a := w.last(t, 6); a.Outcome != LineFull {
			t.Errorf("%+v", a)
		}
		waiter.cancel()
		waiter.was(t, context.Canceled)
		if a := w.last(t, 7); a.Outcome != GaveUp || !a.Queued || a.Place != 1 {
			t.Errorf("%+v", a)
		}
		time.Sleep(time.Second)
		_, _ = s.Acquire(ctx, "id", MaxWait(3*time.Second))
		if a := w.last(t, 8); a.Outcome != WaitedTooLong || a.Waited != 3*time.Second {
			t.Errorf("%+v", a)
		}
		if got := s.TryAcquire(ctx, "id"); got.Acquired {
			t.Error(got)
		}
		if a := w.last(t, 9); a.Outcome != Full || a.Active != 1 {
			t.Errorf("%+v", a)
		}
		waiter = queue(s, "id")
		time.Sleep(2 * time.Second)
		mustRelease(t, l)
		mustRelease(t, waiter.holds(t))
		if a := w.last(t, 10); a.Outcome != Granted || !a.Queued || a.Waited != 2*time.Second {
			t.Errorf("%+v", a)
		}
		joint := mustTry(t, s, "key", Also("all"))
		if a := w.last(t, 11); len(a.IDs) != 2 || a.IDs[1] != "all" || a.Outcome != Granted {
			t.Errorf("%+v", a)
		}
		if ok, err := s.Revoke(ctx, "all", joint.SlotID()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		ends(t, joint, ErrLeaseLost)
		synctest.Wait()
		stop()
		mustRelease(t, mustTry(t, s, "id"))
		w.last(t, 11)
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.ends) != 3 || w.ends[0].Why != Released || w.ends[0].Held <= 0 || w.ends[2].Why != Revoked || len(w.ends[2].IDs) != 2 {
			t.Errorf("%+v", w.ends)
		}
		if w.calls["acquire"] < 8 || w.calls["release"] < 3 || w.calls["renew"] < 1 {
			t.Errorf("%v", w.calls)
		}
	})
}

func TestOutagesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w witness
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Outage: Open})
		defer s.Observe(w.observer())()
		st.is(refuses)
		for range 10 {
			_ = mustTry(t, s, "id").Release(t.Context())
		}
		if a := w.last(t, 10); a.Outcome != Granted || a.Source != FromOpen {
			t.Errorf("%+v", a)
		}
		st.is(well)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.changes) != 2 || !w.changes[0].Down || w.changes[1].Down {
			t.Errorf("%+v", w.changes)
		}
	})
}

// A release for which nobody waits, and those of several ids, are told as others are.
func TestEveryReleaseIsToldOnce(t *testing.T) {
	for _, async := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var w witness
			s := open(t, Options{Limit: 9, AsyncRelease: async})
			defer s.Observe(w.observer())()
			mustRelease(t, mustTry(t, s, "id"))
			mustRelease(t, mustTry(t, s, "id", Also("all")))
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.calls["release"] != 3 || w.calls["acquire"] != 3 {
				t.Errorf("async %v: %v", async, w.calls)
			}
		})
	}
}

// What the store was not told of counts as pending until it is.
func TestReleasesThatTheStoreHasNotHeardOfArePending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1})
		l := mustTry(t, s, "id")
		st.is(refuses)
		_ = l.Release(t.Context())
		synctest.Wait()
		if got := s.Stats().Pending; got != 1 {
			t.Errorf("%d pending, want 1", got)
		}
		st.is(well)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := s.Stats().Pending; got != 0 {
			t.Errorf("%d pending after the store is back, want 0", got)
		}
	})
}

// A line that does not move is seen while it stands, not only when somebody gives up.
func TestTheOldestWaitGrowsWhileTheLineStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 1, Queue: 2})
		l := mustTry(t, s, "id")
		first := queue(s, "id")
		time.Sleep(2 * time.Second)
		second := queue(s, "id")
		time.Sleep(3 * time.Second)
		if got := s.Stats(); got.OldestWait != 5*time.Second || got.Waiting != 2 {
			t.Errorf("%v, %d wait; want 5s, 2", got.OldestWait, got.Waiting)
		}
		mustRelease(t, l)
		l = first.holds(t)
		if got := s.Stats().OldestWait; got != 3*time.Second {
			t.Errorf("%v, want 3s", got)
		}
		mustRelease(t, l)
		mustRelease(t, second.holds(t))
		if got := s.Stats().OldestWait; got != 0 {
			t.Errorf("%v with nobody in line", got)
		}
	})
}

// Metrics name errors of the store by words of a closed set, whatever their texts.
func TestErrorsOfTheStoreAreNamedByAClosedSet(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{fmt.Errorf("x: %w", store.ErrConfig), "config"},
		{fmt.Errorf("x: %w", store.ErrNotReplicated), "not_replicated"},
		{fmt.Errorf("x: %w", store.ErrMoving), "moving"},
		{fmt.Errorf("x: %w", context.Canceled), "canceled"},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), "timeout"},
		{fmt.Errorf("x: %w", os.ErrDeadlineExceeded), "timeout"},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused by 10.0.0.7")}, "error"},
	} {
		if got := (Call{Err: c.err}).ErrorType(); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

// While nobody is told, being observable costs no allocation.
func TestNobodyToldCostsNothing(t *testing.T) {
	s := open(t, Options{Limit: 10})
	pair := func() { _ = mustTry(t, s, "id").Release(context.Background()) }
	before := testing.AllocsPerRun(500, pair)
	stop := s.Observe(&Observer{})
	stop()
	if after := testing.AllocsPerRun(500, pair); after > before {
		t.Errorf("%v allocations, had %v", after, before)
	}
}
