package memstore

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// Clear takes what was held when it began: not what those are granted whom it makes
// room for, however many steps it takes.
func TestClearTakesWhatWasHeldWhenItBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2*clearPage + 7
		s, ctx := New(), context.Background()
		for i := range 2 * n {
			r := store.Request{ID: "id", SlotID: fmt.Sprint(i), Weight: 1, Limit: n, TTL: time.Minute, Queue: n}
			if _, err := s.Acquire(ctx, &r); err != nil {
				t.Fatal(err)
			}
		}
		if cleared, err := s.Clear(ctx, store.Clear{ID: "id", TTL: time.Minute}); err != nil || cleared != n {
			t.Errorf("%d cleared, %v", cleared, err)
		}
		if u, err := s.Usage(ctx, "id", n); err != nil || u.Active != n || u.Waiting != 0 {
			t.Errorf("%+v, %v", u, err)
		}
	})
}

// What was cleared is remembered for the TTL of Clear, and then takes no room.
func TestARevokedSlotIsRememberedForItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ctx := New(), context.Background()
		ask(t, s, "id", "a")
		if n, err := s.Clear(ctx, store.Clear{ID: "id", TTL: time.Minute}); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		renew := []store.Renewal{{ID: "id", SlotID: "a", TTL: time.Minute, Weight: 1, Register: true}}
		time.Sleep(time.Minute - 1)
		if got := s.Renew(ctx, renew)[0]; got.Outcome != store.Revoked {
			t.Errorf("%+v", got)
		}
		time.Sleep(2 * sweepEvery)
		for i := range s.shards {
			sh := &s.shards[i]
			sh.mu.Lock()
			if sh.revoked != nil || len(sh.ids) != 0 {
				t.Errorf("%v, %v", sh.revoked, sh.ids)
			}
			sh.mu.Unlock()
		}
	})
}
