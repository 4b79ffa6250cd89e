package faults

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// A process that is starved of its processor still renews in time, as long as it runs at
// all: one thread for Go code, which a busy loop wants for itself.
const (
	starvedLeases = 200
	starvedTTL    = 300 * time.Millisecond

	// StarvedJudged is the longest that a PING may have taken, if leases that were lost
	// are to be held against us: a third of the TTL, which is when they are renewed.
	StarvedJudged = starvedTTL / 3
)

// StarvedResult is what became of the leases of a starved process.
type StarvedResult struct {
	Length  time.Duration
	Stats   gotsem.Stats
	PingMax time.Duration // the longest round trip of a plain client beside them
}

func (r StarvedResult) String() string {
	return fmt.Sprintf("%d leases of %v, one thread and a busy loop, %v: %d renewals, %d leases lost; a PING beside them took %v at most",
		starvedLeases, starvedTTL, r.Length, r.Stats.Renewals, r.Stats.Lost, r.PingMax.Round(time.Millisecond))
}

// Starved holds leases for d in a process that is starved. It sets GOMAXPROCS while it
// runs.
func Starved(tb redistest.TB, d time.Duration) StarvedResult {
	rdb := redistest.Start(tb).Client()
	st := redisstore.New(rdb, "starved:")
	tb.Cleanup(func() { _ = st.Close() })
	sem, err := gotsem.New(gotsem.Options{Store: st, Limit: starvedLeases, TTL: starvedTTL, Outage: gotsem.Closed})
	if err != nil {
		tb.Fatalf("faults: %v", err)
	}
	tb.Cleanup(func() { _ = sem.Close() })
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	go func() {
		for n := 0; ; n++ {
			if n%1_000_000 == 0 && ctx.Err() != nil {
				return
			}
		}
	}()
	r := StarvedResult{Length: d}
	for i := range starvedLeases {
		hold := func() {
			for ctx.Err() == nil {
				if l, err := sem.Acquire(ctx, fmt.Sprint("id", i%20)); err == nil {
					select {
					case <-ctx.Done():
						_ = l.Release(context.Background())
					case <-l.Context().Done(): // lost: Stats counts it
					}
				}
			}
		}
		go hold()
	}
	for ctx.Err() == nil {
		began := time.Now()
		if err := rdb.Ping(context.Background()).Err(); err != nil {
			tb.Fatalf("faults: %v", err)
		}
		r.PingMax = max(r.PingMax, time.Since(began))
		sleep(ctx, 20*time.Millisecond)
	}
	r.Stats = sem.Stats()
	return r
}
