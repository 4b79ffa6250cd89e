package gotsem

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestCloseAnswersWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 2, Queue: 10})
		other := open(t, Options{Store: st, Limit: 2, Queue: 10})
		a, b := mustTry(t, s, "id"), mustTry(t, s, "id")
		var ws []*queued
		for range 5 {
			ws = append(ws, queue(s, "id"))
		}
		next := queue(other, "id")
		ctx := a.Context()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, w := range ws {
			w.was(t, ErrClosed)
		}
		for _, c := range []context.Context{ctx, b.Context()} {
			if c.Err() == nil || !errors.Is(context.Cause(c), ErrClosed) {
				t.Errorf("a lease's context: %v", context.Cause(c))
			}
		}
		next.holds(t) // what was held is given back
		stands(t, other, "id", 1, 0)
		mustRelease(t, a) // a no-op
		if err := s.Close(); err != nil {
			t.Errorf("a second time: %v", err)
		}
		_, errTry := s.Try(context.Background(), "id")
		_, errAcquire := s.Acquire(context.Background(), "id")
		_, errUsage := s.Usage(context.Background(), "id")
		for _, err := range []error{errTry, errAcquire, errUsage, s.SetLimit(context.Background(), "id", 1)} {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("after the end: %v", err)
			}
		}
		if r := s.TryAcquire(context.Background(), "id"); r.Acquired || r.FailedOpen() {
			t.Errorf("after the end: %+v", r)
		}
		if st := s.Stats(); st.Held != 0 || st.Waiting != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Tries, waits and releases go on while the semaphore closes: nothing stays held.
func TestCloseUnderLoad(t *testing.T) {
	st := newShaky()
	for range 30 {
		s, err := New(Options{Store: st, Limit: 3, Queue: 50, KnownFull: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		begun := make(chan struct{}, 100)
		for i := range 16 {
			all.Go(func() {
				for {
					begun <- struct{}{}
					var l *Lease
					var err error
					if i%2 == 0 {
						l, err = s.Acquire(context.Background(), "id")
					} else {
						l, err = s.Try(context.Background(), "id")
					}
					<-begun
					switch {
					case errors.Is(err, ErrClosed):
						return
					case errors.Is(err, ErrFull):
						runtime.Gosched()
					case err != nil:
						t.Error(err)
						return
					default:
						if i%4 > 0 { // some are never released
							_ = l.Release(context.Background())
						}
					}
				}
			})
		}
		for range rand.N(200) {
			runtime.Gosched()
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		deadline := time.Now().Add(5 * time.Second)
		for st.held(t, "id") > 0 {
			if time.Now().After(deadline) {
				t.Fatalf("%d are still held", st.held(t, "id"))
			}
			time.Sleep(time.Millisecond)
		}
	}
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
