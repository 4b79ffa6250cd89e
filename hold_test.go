package gotsem

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A lease that is held for longer than MaxHold ends as a lost one, and makes room.
func TestALeaseHeldTooLongIsTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		s := open(t, Options{Limit: 1, MaxHold: time.Minute, Logger: log.logger()})
		l := mustTry(t, s, "id")
		w := queue(s, "id")
		time.Sleep(time.Minute - time.Nanosecond)
		lives(t, l)
		time.Sleep(time.Nanosecond)
		ends(t, l, ErrHeldTooLong)
		ends(t, l, ErrLeaseLost)
		mustRelease(t, w.holds(t))
		mustRelease(t, l)
		if st := s.Stats(); st.HeldTooLong != 1 || st.Lost != 1 || st.Held != 0 {
			t.Errorf("%+v", st)
		}
		if lines := log.with("held too long"); len(lines) != 1 || !contains(lines[0], s.owner) {
			t.Errorf("%q", lines)
		}
		joint := mustTry(t, s, "key", Also("id"))
		time.Sleep(time.Minute)
		ends(t, joint, ErrHeldTooLong)
		synctest.Wait()
		stands(t, s, "key", 0, 0)
		stands(t, s, "id", 0, 0)
		short := mustTry(t, s, "id") // and is released in time
		mustRelease(t, short)
		time.Sleep(time.Hour)
		if n := s.Stats().HeldTooLong; n != 2 {
			t.Errorf("%d were held too long", n)
		}
		err := s.Do(t.Context(), "id", func(ctx context.Context) error { <-ctx.Done(); return nil })
		if !errors.Is(err, ErrHeldTooLong) {
			t.Error(err)
		}
	})
}

func TestWhatIsSlowIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		s := open(t, Options{Limit: 1, SlowHold: time.Minute, SlowWait: time.Second, Logger: log.logger()})
		l := mustTry(t, s, "id")
		w := queue(s, "id")
		time.Sleep(10 * time.Minute)
		mustRelease(t, l)
		mustRelease(t, w.holds(t))
		mustRelease(t, mustTry(t, s, "id"))
		time.Sleep(10 * time.Minute)
		if held, waited := log.with("held for long"), log.with("waited for long"); len(held) != 1 || len(waited) != 1 {
			t.Errorf("%q, %q", held, waited)
		}
	})
}
