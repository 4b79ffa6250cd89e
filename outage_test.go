package gotsem

import (
	"context"
	"errors"
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
func TestWhatTheCompatibilityAPILogs(t *testing.T) {
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

func owed(s *Semaphore) int {
	s.gate.backlog.mu.Lock()
	defer s.gate.backlog.mu.Unlock()
	return len(s.gate.backlog.pending)
}

// deaf is a store whose listening takes as long as connecting does.
type deaf struct {
	*shaky
	connected chan struct{}
}

func (d deaf) OnWake(func(store.Wakeup)) func() { return func() { <-d.connected } }

// mustLeave releases what the store cannot be told of.
func mustLeave(t *testing.T, l *Lease) {
	t.Helper()
	if err := l.Release(context.Background()); err != nil && !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
}
