package gotsem

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// xsync has the methods of golang.org/x/sync/semaphore.
type xsync struct{ sem *Semaphore }

func (x xsync) acquire(ctx context.Context, n int) (*Lease, error) {
	return x.sem.Acquire(ctx, "id", Weight(n))
}

func (x xsync) try(n int) *Lease {
	l, err := x.sem.Try(context.Background(), "id", Weight(n))
	if err != nil {
		return nil
	}
	return l
}

// cancelledBeforeRoom is a ctx that ends before there is room: the Acquire must not be
// granted, and must leave nothing behind when it returns.
func cancelledBeforeRoom(t *testing.T, s *Semaphore) {
	t.Helper()
	x := xsync{s}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	one, err := x.acquire(context.Background(), 1)
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for l := x.try(1); l != nil; l = x.try(1) { // until the other waits, or was refused
			_ = l.Release(context.Background())
		}
		cancel()
		_ = one.Release(context.Background())
	}()
	l, err := x.acquire(ctx, 2)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v: granted after its ctx was cancelled", l, err)
	}
	<-gone
	both := x.try(2)
	if both == nil {
		u, err := s.Usage(context.Background(), "id")
		t.Fatalf("a Try right after it is refused: %+v, %v", u, err)
	}
	mustRelease(t, both)
}

func TestACancelledAcquireIsNotGrantedAndLeavesNothing(t *testing.T) {
	s := open(t, Options{Limit: 2})
	for range 1000 {
		if cancelledBeforeRoom(t, s); t.Failed() {
			return
		}
	}
}

// The ctx ends while the store is making the grant: whichever came first, it wins.
func TestACtxThatIsOverWinsAgainstTheGrant(t *testing.T) {
	for name, take := range map[string]func(ctx context.Context, s *Semaphore) (bool, error){
		"Try": func(ctx context.Context, s *Semaphore) (bool, error) {
			l, err := s.Try(ctx, "id")
			return l != nil, err
		},
		"Acquire": func(ctx context.Context, s *Semaphore) (bool, error) {
			l, err := s.Acquire(ctx, "id")
			return l != nil, err
		},
		"Do": func(ctx context.Context, s *Semaphore) (got bool, err error) {
			err = s.Do(ctx, "id", func(context.Context) error { got = true; return nil })
			return got, err
		},
		"TryAcquire": func(ctx context.Context, s *Semaphore) (bool, error) {
			return s.TryAcquire(ctx, "id").Acquired, ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, outage := range []Outage{Local, Open, Closed} {
					st := newShaky()
					s := open(t, Options{Store: st, Limit: 1, Outage: outage})
					ctx, cancel := context.WithCancel(context.Background())
					st.hooked(func(verb, _ string) {
						if verb == "acquire" {
							cancel()
						}
					})
					if got, err := take(ctx, s); got || !errors.Is(err, context.Canceled) {
						t.Errorf("%v: granted: %v, %v", outage, got, err)
					}
					if n := st.held(t, "id"); n != 0 { // no time has passed
						t.Errorf("%v: %d held after it", outage, n)
					}
					if n := s.Stats().Granted; n != 0 {
						t.Errorf("%v: %d counted as granted", outage, n)
					}
				}
			})
		})
	}
}

// Who gives up does not stand in the way of others once the call has returned, however
// it gave up.
func TestWhoGivesUpIsGoneWhenTheCallReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 2, Queue: 9})
		mustTry(t, s, "id")
		for _, give := range []func() error{
			func() error {
				ctx, cancel := context.WithTimeout(context.Background(), 1234*time.Millisecond)
				defer cancel()
				_, err := s.Acquire(ctx, "id", Weight(2))
				return err
			},
			func() error {
				_, err := s.Acquire(context.Background(), "id", Weight(2), MaxWait(777*time.Millisecond))
				return err
			},
		} {
			if err := give(); err == nil {
				t.Fatal("granted")
			}
			mustRelease(t, mustTry(t, s, "id"))
		}
	})
}

// A store that hangs holds up who gives up for withdrawWait at most.
func TestGivingUpIsBoundedThoughTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Queue: 9})
		l := mustTry(t, s, "id")
		st.is(hangs, "release")
		began := time.Now()
		_, err := s.Acquire(context.Background(), "id", MaxWait(500*time.Millisecond))
		if d := time.Since(began); d != 500*time.Millisecond+withdrawWait || !errors.Is(err, ErrWaitTooLong) {
			t.Errorf("%v after %v", err, d)
		}
		st.is(hangs)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		began = time.Now()
		if _, err := s.Acquire(ctx, "id"); time.Since(began) != 10*time.Millisecond {
			t.Errorf("%v after %v: a question that is not answered is not waited for after the deadline", err, time.Since(began))
		}
		st.is(well)
		mustRelease(t, l)
		time.Sleep(5 * time.Second)
		if n := st.held(t, "id"); n != 0 {
			t.Errorf("%d held", n)
		}
	})
}

// A store that does not answer says nothing about room: whoever waited for it in vain
// is told that, and why.
func TestAStoreThatIsAwayIsNotFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, m := range []mood{refuses, hangs} {
			st := newShaky()
			s := open(t, Options{Store: st, Limit: 10, Queue: 20})
			st.is(m)
			began := time.Now()
			_, err := s.Acquire(context.Background(), "id", MaxWait(2*time.Second))
			if !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrFull) || errors.Is(err, ErrWaitTooLong) {
				t.Errorf("%v", err)
			}
			if m == refuses && !errors.Is(err, errAway) {
				t.Errorf("no cause: %v", err)
			}
			if !contains(err.Error(), "could not be asked") {
				t.Errorf("%v", err)
			}
			if d := time.Since(began); d < 2*time.Second || d > 2*time.Second+DefaultStoreTimeout {
				t.Errorf("after %v", d)
			}
			if st := s.Stats(); st.Unavailable != 1 || st.Refused != 0 {
				t.Errorf("%+v", st)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err = s.Acquire(ctx, "id")
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnavailable) {
				t.Errorf("a deadline: %v", err)
			}
			// Answered once, and away since: what is known of the id is old.
			st.is(well)
			time.Sleep(2 * time.Second)
			mustTry(t, s, "other", Weight(10))
			w := queue(s, "other", MaxWait(4*time.Second))
			st.is(m)
			time.Sleep(5 * time.Second)
			w.was(t, ErrUnavailable)
			st.is(well)
			time.Sleep(2 * time.Second)
			w = queue(s, "other", MaxWait(time.Second))
			time.Sleep(2 * time.Second)
			w.was(t, ErrWaitTooLong)
		}
	})
}
