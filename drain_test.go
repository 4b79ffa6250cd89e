package gotsem

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// refused asks for id, which is full.
func refused(t *testing.T, s *Semaphore, id string, opts ...Option) *FullError {
	t.Helper()
	_, err := s.Try(context.Background(), id, opts...)
	var full *FullError
	if !errors.As(err, &full) {
		t.Fatalf("%v; want full", err)
	}
	return full
}

// A refusal says when it is worth while to come back, by how long slots are held here,
// and not by when living holders would lapse if they stopped renewing.
func TestRetryAfterGoesByTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 4, Queue: 50})
		time.Sleep(time.Second)
		var held []*Lease
		for range 4 {
			held = append(held, mustTry(t, s, "id"))
			time.Sleep(500 * time.Millisecond)
		}
		full := refused(t, s, "id")
		if full.RetryAfter != retryUnknown || full.NextLapse != DefaultTTL-2*time.Second {
			t.Errorf("nothing measured: %+v", full)
		}
		for range 20 { // each is held for 2 s: one comes free each 500 ms
			mustRelease(t, held[0])
			held = append(held[1:], mustTry(t, s, "id"))
			time.Sleep(500 * time.Millisecond)
		}
		if full = refused(t, s, "id"); full.RetryAfter != 500*time.Millisecond {
			t.Errorf("one comes free each 500 ms: %+v", full)
		}
		if full = refused(t, s, "id", Weight(3)); full.RetryAfter != 1500*time.Millisecond {
			t.Errorf("three do in 1.5 s: %+v", full)
		}
		if !contains(full.Error(), "try again in about 1.5s") || contains(full.Error(), "lapse") {
			t.Error(full)
		}
		for range 5 {
			defer queue(s, "id").cancel()
		}
		if full = refused(t, s, "id"); full.RetryAfter != 3*time.Second {
			t.Errorf("five stand before: %+v", full)
		}
		time.Sleep(10 * time.Second) // nothing ended for longer than that: it takes as long now
		if full = refused(t, s, "id"); full.RetryAfter < 10*time.Second {
			t.Errorf("it stands: %+v", full)
		}
		if full.NextLapse < DefaultTTL/2 {
			t.Errorf("they live: %+v", full)
		}
		if err := s.SetLimit(context.Background(), "paused", 0); err != nil {
			t.Fatal(err)
		}
		if full = refused(t, s, "paused"); full.RetryAfter != 0 || !contains(full.Error(), "paused") {
			t.Errorf("%+v", full)
		}
	})
}

// Who has stopped renewing is gone: its slot lapses.
func TestRetryAfterGoesByALapseThatIsNear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 1})
		dead := open(t, Options{Store: st.Store, Limit: 1})
		dead.renewer.remove(mustTry(t, dead, "id")) // as if its process was
		time.Sleep(DefaultTTL - 200*time.Millisecond)
		if full := refused(t, s, "id"); full.RetryAfter != 200*time.Millisecond || full.NextLapse != full.RetryAfter {
			t.Errorf("%+v", full)
		}
	})
}
