package property

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
	"github.com/ashfaqjani916/gotsem/verify/skew"
)

// The server's clock went back and its memory was lost within that time, once or again:
// fences, which are read off that clock, fell.
func TestFencesFellWithTheClock(t *testing.T) {
	clocks, err := skew.Install()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(clocks.Close)
	srv := redistest.Start(t)
	rdb := srv.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	asked := 0
	fence := func(s *redisstore.Store, id string) uint64 {
		t.Helper()
		for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(5 * time.Millisecond) { // between polls of a grace
			asked++
			d, err := s.Acquire(ctx, &store.Request{ID: id, SlotID: fmt.Sprint("s", asked), Weight: 1, Limit: 1000, TTL: time.Second, Grace: 2 * time.Second, Budget: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if d.Outcome == store.Granted {
				return d.Fence
			}
		}
		t.Fatal("nothing was granted within 20 s")
		return 0
	}
	one, two := redisstore.New(rdb, "fences:"), redisstore.New(rdb, "fences:")
	last := max(fence(one, "x"), fence(two, "x"))
	behind := time.Duration(0)
	for round, fault := range []struct{ step, flush, restart bool }{{step: true, flush: true}, {flush: true}, {step: true}, {restart: true}, {step: true, restart: true}} {
		if fault.step {
			behind -= 20 * time.Second
			if err := clocks.Set(srv, behind); err != nil {
				t.Fatal(err)
			}
		}
		if fault.flush {
			if _, err := srv.Do("FLUSHALL"); err != nil {
				t.Fatal(err)
			}
		}
		if fault.restart {
			srv.Restart(false)
		}
		before := last
		for i, s := range []*redisstore.Store{one, two, redisstore.New(rdb, "fences:"), one, two} {
			f := fence(s, "x")
			if f <= last {
				t.Errorf("round %d, %+v: process %d was given a fence %d µs below the one before", round, fault, i, last-f)
			}
			last = f
			if g := fence(s, fmt.Sprint("y", round, i)); g <= before {
				t.Errorf("round %d, %+v: process %d was given a fence of another id %d µs below those before the fault", round, fault, i, before-g)
			}
		}
	}
}
