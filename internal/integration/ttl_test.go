//go:build unix

package integration

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// Two TTLs on one id: the short one's end takes nothing from the long one.
func TestAShortTTLTakesNothingFromALongOne(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx := t.Context()
	long := seedSem(t, srv.Client(), time.Minute, 2)
	short := seedSem(t, srv.Client(), 2*time.Second, 2)
	leases := fullSem(t, srv.Client(), 2, func(o *gotsem.Options) { o.TTL = time.Minute })

	a := long.TryAcquire(ctx, "mixed")
	b := short.TryAcquire(ctx, "mixed")
	if !a.Acquired || !b.Acquired {
		t.Fatal(a, b)
	}
	if r := long.TryAcquire(ctx, "mixed"); r.Acquired {
		t.Fatalf("a third of two: %+v", r)
	}
	soon(t, patience, "the short slot to lapse", func() bool { return long.ActiveCount(ctx, "mixed") == 1 })
	if _, still := members(t, srv, "mixed")[a.SlotID]; !still {
		t.Fatal("the long slot is gone")
	}
	lease, err := leases.Try(ctx, "mixed")
	if err != nil {
		t.Fatalf("one more should get in: %v", err)
	}
	if r := short.TryAcquire(ctx, "mixed"); r.Acquired || r.Active != 2 {
		t.Fatalf("%+v, want refused at two active", r)
	}
	if left := do(t, srv, "PTTL", prefix+"mixed").(int64); left < 50_000 {
		t.Fatalf("the key lives %d ms more, its longest slot nearly a minute", left)
	}
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if left := do(t, srv, "PTTL", prefix+"mixed").(int64); left < 50_000 {
		t.Fatalf("after a release the key lives %d ms more", left)
	}
}

// No client of ours says what time it is: only Redis does. So their clocks cannot
// matter; what a slot lives is counted by the server's.
func TestNoClientClockOnTheWire(t *testing.T) {
	srv := redistest.Start(t)
	relay := redistest.NewRelay(t, srv.Addr())
	var mu sync.Mutex
	var wire strings.Builder
	relay.DropReplyWhen(func(request []byte) bool { // looks, and drops nothing
		mu.Lock()
		defer mu.Unlock()
		wire.Write(request)
		return false
	})
	before := serverTime(t, srv)
	// In a bubble the process is in another year than the server, whose clock calls do
	// name: until when they may be carried out.
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
		defer func() { _ = rdb.Close() }()
		ctx := context.Background()
		const ttl = time.Minute
		sem := gotsem.NewGotsem(rdb, prefix, ttl, 3, nil, nil)
		defer func() { _ = sem.Close() }()
		a := sem.TryAcquire(ctx, "clock")
		if !a.Acquired {
			t.Fatal(a)
		}
		after := serverTime(t, srv)
		if at := members(t, srv, "clock")[a.SlotID]; at < before+ttl.Milliseconds() || at > after+ttl.Milliseconds() {
			t.Errorf("the slot lapses at %d by the server, asked for between %d and %d for %v", at, before, after, ttl)
		}
		sem.ActiveCount(ctx, "clock")
		sem.Release(ctx, "clock", a.SlotID)
		lease, err := sem.Acquire(ctx, "clock")
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(ctx); err != nil {
			t.Fatal(err)
		}
		sem.ForceRelease(ctx, "clock")

		mu.Lock()
		defer mu.Unlock()
		if !strings.Contains(wire.String(), prefix+"clock") {
			t.Fatal("the relay saw no call")
		}
		for _, number := range regexp.MustCompile(`\b\d{9,19}\b`).FindAllString(wire.String(), -1) {
			n, _ := strconv.ParseInt(number, 10, 64)
			for n > 1e11 {
				n /= 1000
			}
			if age := time.Since(time.Unix(n, 0)).Abs(); age < 24*time.Hour {
				t.Errorf("%s in a request is the time of day where the process is", number)
			}
		}
	})
}
