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
	if kept[0].Err != nil || kept[0].Outcome != store.Restored {
		t.Fatalf("the holder: %+v", kept[0])
	}
}

// Two processes with different TTLs use one prefix, and Redis loses its memory. The one with
// the short TTL notices, and grants nothing before the other had the time to come forward.
func TestTheLongestGraceCounts(t *testing.T) {
	srv := redistest.Start(t)
	ctx := context.Background()
	open := func() *redisstore.Store {
		s := redisstore.New(srv.Client(), "sem:")
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	long, short := open(), open()
	try := func(s *redisstore.Store, id, slot string, grace time.Duration) store.Decision {
		t.Helper()
		d, err := s.Acquire(ctx, &store.Request{ID: id, SlotID: slot, Weight: 1, Limit: 1, TTL: grace, Grace: grace})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := try(long, "x", "h", time.Minute); d.Outcome != store.Granted {
		t.Fatalf("%+v", d)
	}
	try(short, "y", "a", 100*time.Millisecond)
	for _, loss := range []string{"the first", "the second"} {
		if _, err := srv.Do("FLUSHALL"); err != nil {
			t.Fatal(err)
		}
		if d := try(short, "x", "a", 100*time.Millisecond); d.Outcome != store.Recovering || d.RetryIn < 50*time.Second {
			t.Fatalf("%s loss: %+v, want a grace of a minute", loss, d)
		}
		kept := long.Renew(ctx, []store.Renewal{{ID: "x", SlotID: "h", TTL: time.Minute, Weight: 1, Limit: 1, Trust: time.Minute, Grace: time.Minute}})
		if kept[0].Err != nil || kept[0].Outcome != store.Restored {
			t.Fatalf("%s loss: the holder: %+v", loss, kept[0])
		}
	}
}

// A grace that nobody needs any more is forgotten: one crashed process with a long TTL
// does not make graces long for ever.
func TestTheLongestGraceAgesOut(t *testing.T) {
	srv := redistest.Start(t)
	ctx := context.Background()
	s := redisstore.New(srv.Client(), "sem:")
	t.Cleanup(func() { _ = s.Close() })
	try := func(slot string) store.Decision {
		t.Helper()
		d, err := s.Acquire(ctx, &store.Request{ID: "x", SlotID: slot, Weight: 1, Limit: 100, TTL: time.Second, Grace: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	try("a")
	rdb := srv.Client()
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := rdb.HSet(ctx, "gotsem:e:sem:", "longest", 60_000, "said", now.UnixMilli()-60_001).Err(); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		try("b")
		if n := rdb.HGet(ctx, "gotsem:e:sem:", "longest").Val(); n == "100" {
			break
		}
		if i > 200 {
			t.Fatal("it is still a minute")
		}
		time.Sleep(10 * time.Millisecond)
	}
}
