package gotsem

import (
	"context"
	"errors"
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// A number that does not fit is refused in words, or counts as the largest that does:
// it never breaks the cap.
func TestNumbersThatDoNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		for _, o := range []Options{
			{Limit: math.MaxInt, Queue: math.MaxInt},
			{Limit: 3, LimitFunc: func(context.Context, string) (int, error) { return math.MaxInt, nil }},
		} {
			s := open(t, o)
			l := mustTry(t, s, "id")
			if u, err := s.Usage(ctx, "id"); err != nil || int64(u.Limit) != min(store.MaxLimit, math.MaxInt) {
				t.Errorf("%+v, %v", u, err)
			}
			mustRelease(t, l)
			if strconv.IntSize == 64 {
				most := int(int64(store.MaxWeight))
				mustTry(t, s, "heavy", Weight(most))
				if _, err := s.Try(ctx, "heavy"); !errors.Is(err, ErrFull) {
					t.Errorf("one more than the largest limit: %v", err)
				}
				for _, w := range []int{most + 1, math.MaxInt} {
					if _, err := s.Acquire(ctx, "id", Weight(w)); !errors.Is(err, ErrTooHeavy) {
						t.Errorf("weight %d: %v", w, err)
					}
				}
				if err := s.SetLimit(ctx, "id", math.MaxInt); !errors.Is(err, store.ErrConfig) {
					t.Errorf("%v", err)
				}
			}
		}
		s := NewGotsem(nil, "x:", math.MaxInt64, math.MaxInt, nil, nil)
		if s.opt.TTL != store.MaxTTL || int64(s.limits.fallback) != store.MaxLimit {
			t.Errorf("%v, %d", s.opt.TTL, s.limits.fallback)
		}
	})
}

// Without a Limit to stand in, an id whose LimitFunc does not answer is not "paused".
func TestALimitFuncThatFailsWithoutALimitSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("database away")
		for _, c := range []struct {
			n   int
			err error
		}{{0, down}, {0, nil}, {-7, nil}} {
			var a asker
			a.says(c.n, c.err)
			var log logged
			s := open(t, Options{LimitFunc: a.ask, Logger: log.logger()})
			_, errTry := s.Try(context.Background(), "id")
			_, errAcquire := s.Acquire(context.Background(), "id")
			for _, err := range []error{errTry, errAcquire} {
				if err == nil || errors.Is(err, ErrFull) || !contains(err.Error(), "there is no Options.Limit") || c.err != nil && !errors.Is(err, c.err) {
					t.Errorf("%v: %v", c, err)
				}
			}
			synctest.Wait() // it is logged on a goroutine of its own
			if len(log.with("no limit for an id")) == 0 {
				t.Errorf("%v: nothing is logged: %q", c, log.lines)
			}
			a.says(2, nil)
			time.Sleep(limitErrorAge)
			_, _ = s.Try(context.Background(), "id") // asks again
			synctest.Wait()
			mustTry(t, s, "id")
		}
	})
}

// Stats add up, each reason by itself.
func TestStatsTellReasonsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, Queue: 1})
		ctx := context.Background()
		l := mustTry(t, s, "id")
		_, _ = s.Try(ctx, "id")
		_, _ = s.Try(ctx, "id", Weight(2))
		_, _ = s.Acquire(ctx, "id", MaxWait(time.Second))
		w := queue(s, "id")
		_, _ = s.Acquire(ctx, "id")
		time.Sleep(3 * time.Second)
		mustRelease(t, l)
		mustRelease(t, w.holds(t))
		mustRelease(t, mustTry(t, s, "id"))
		got := s.Stats()
		want := Stats{Granted: 3, Released: 3, Refused: 4, TooHeavy: 1, WaitTooLong: 1, QueueFull: 1, Queued: 2, Waits: 1, Waited: 3 * time.Second}
		if got != want {
			t.Errorf("%+v\nwant %+v", got, want)
		}
		r := s.TryAcquire(ctx, "id")
		st.is(refuses, "release")
		s.Release(ctx, "id", r.SlotID)
		st.is(well)
		if n := s.Stats().Released; n != 4 {
			t.Errorf("%d released: what is given back later counts", n)
		}
		time.Sleep(5 * time.Second)
		if n := st.held(t, "id"); n != 0 {
			t.Errorf("%d held", n)
		}
	})
}
