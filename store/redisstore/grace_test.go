package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// A process that had only ever waited had not met the marker, took a server that had
// lost everything for a new one, and was granted what others held: by its old ticket, or
// asking anew.
func TestAProcessThatOnlyWaitedKnowsOfTheLoss(t *testing.T) {
	for _, anew := range []bool{false, true} {
		testOnlyWaited(t, anew)
	}
}

func testOnlyWaited(t *testing.T, anew bool) {
	srv := redistest.Start(t)
	ctx := context.Background()
	open := func() *redisstore.Store {
		s := redisstore.New(srv.Client(), "sem:")
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	holder, waiter := open(), open()
	r := store.Request{ID: "x", Weight: 1, Limit: 1, TTL: time.Minute, Grace: time.Minute, Queue: 5}
	ask := func(s *redisstore.Store, slot string, want store.Outcome) store.Decision {
		t.Helper()
		r.SlotID = slot
		d, err := s.Acquire(ctx, &r)
		if err != nil || d.Outcome != want {
			t.Fatalf("%s: %+v, %v; want %v", slot, d, err, want)
		}
		return d
	}
	ask(holder, "h", store.Granted)
	r.Ticket = ask(waiter, "w", store.Waiting).Ticket
	if _, err := srv.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	if anew {
		r.Ticket = 0
		ask(waiter, "w2", store.Recovering)
	} else {
		ask(waiter, "w", store.Recovering)
	}
	kept := holder.Renew(ctx, []store.Renewal{{ID: "x", SlotID: "h", TTL: time.Minute, Weight: 1, Limit: 1, Trust: time.Minute, Grace: time.Minute}})
	if kept[0].Err != nil || kept[0].Kept != store.PutBack {
		t.Fatalf("the holder: %+v", kept[0])
	}
}
