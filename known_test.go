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

func TestKnownFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 2, KnownFull: 100 * time.Millisecond})
		other := open(t, Options{Store: st.Store, Limit: 2})
		ctx := context.Background()
		asked := func(want int) {
			t.Helper()
			synctest.Wait() // what is given back in the background ends what is known, too
			before := st.asked("acquire")
			for range 10 {
				l, err := s.Try(ctx, "id")
				if want == 10 && err == nil {
					mustRelease(t, l)
				} else if !errors.Is(err, ErrFull) {
					t.Fatalf("%v", err)
				}
			}
			if n := st.asked("acquire") - before; n != want {
				t.Fatalf("10 tries asked the store %d times, want %d", n, want)
			}
		}
		a, b := mustTry(t, s, "id"), mustTry(t, other, "id")
		asked(1)
		if r := s.TryAcquire(ctx, "id"); r.Acquired || r.Active != 2 || r.Max != 2 {
			t.Errorf("%+v", r)
		}
		time.Sleep(100 * time.Millisecond)
		asked(1)
		mustRelease(t, a) // by this process: believed no longer
		asked(10)
		a = mustTry(t, s, "id")
		asked(1)
		if _, err := other.Revoke(ctx, "id", b.SlotID()); err != nil {
			t.Fatal(err)
		}
		asked(0) // nobody told this process
		time.Sleep(100 * time.Millisecond)
		asked(10)
		b = mustTry(t, other, "id")
		asked(1)
		s.ForceRelease(ctx, "id")
		asked(10)
		ends(t, a, ErrLeaseLost)
		if err := s.SetLimit(ctx, "id", 0); err != nil {
			t.Fatal(err)
		}
		asked(1)
		if err := s.ResetLimit(ctx, "id"); err != nil {
			t.Fatal(err)
		}
		asked(10)

		// One who is refused two slots says nothing about one.
		mustTry(t, s, "id")
		if _, err := s.Try(ctx, "id", Weight(2)); !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		if n := st.asked("acquire"); n > 0 {
			mustTry(t, s, "id")
		}
		_ = b
		if n := s.Stats(); n.KnownFull == 0 || n.Refused <= n.KnownFull {
			t.Errorf("%+v", n)
		}
	})
}

func TestKnownFullIsNotBelievedBeyondALapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1, KnownFull: time.Hour})
		if _, err := st.Store.Acquire(context.Background(), &store.Request{ID: "id", SlotID: "killed", Weight: 1, Limit: 1, TTL: time.Second}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Try(context.Background(), "id"); !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		mustTry(t, s, "id")
	})
}

// A refusal that was decided before a release, and heard of after it, was believed: a
// free slot stayed free for as long as KnownFull.
func TestARefusalFromBeforeAReleaseIsNotBelieved(t *testing.T) {
	for _, handOver := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			st := late{newShaky(), make(chan struct{}), make(chan struct{})}
			s := open(t, Options{Store: st, Limit: 1, KnownFull: time.Hour, TTL: time.Hour, AsyncRelease: handOver})
			held := mustTry(t, s, "id")
			got := make(chan error)
			go func() {
				_, err := s.Try(context.Background(), "id")
				got <- err
			}()
			<-st.refused
			mustRelease(t, held)
			synctest.Wait()
			st.goOn <- struct{}{}
			if err := <-got; !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
			mustTry(t, s, "id")
		})
	}
}

func TestKnownFullIsBounded(t *testing.T) {
	s := open(t, Options{Limit: 1, KnownFull: time.Hour, LimitFunc: nil})
	for i := range knownMax + 10 {
		id := fmt.Sprint("id", i)
		s.known.learn(&FullError{ID: id}, 1, 0, s.known.mark(id))
		if n := len(s.known.ids); n > knownMax {
			t.Fatalf("%d refusals are remembered", n)
		}
	}
}

func BenchmarkKnownFull(b *testing.B) {
	s := open(b, Options{Limit: 1, KnownFull: time.Hour, TTL: time.Hour})
	ctx := context.Background()
	mustTry(b, s, "id")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Try(ctx, "id"); err == nil {
			b.Fatal("granted")
		}
	}
}
