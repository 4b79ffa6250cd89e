//go:build unix

package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// A negative grace leaves out the grace, and not the pause in which shares register.
func TestSharesRegisterWithoutAGraceToo(t *testing.T) {
	srv := redistest.Start(t)
	ctx := context.Background()
	const limit, ttl = 5, time.Second
	local := func() *gotsem.Semaphore {
		return fullSem(t, srv.Client(), limit, func(o *gotsem.Options) {
			o.TTL, o.Grace, o.Outage, o.Queue = ttl, -1, gotsem.Local, -1
		})
	}
	sems := []*gotsem.Semaphore{local(), local()}
	for range 2 { // each learns that there are two
		for _, s := range sems {
			l, err := s.Try(ctx, "id")
			if err != nil {
				t.Fatal(err)
			}
			_ = l.Release(ctx)
			time.Sleep(ttl / 2)
		}
	}
	srv.Stop()
	var mu sync.Mutex
	var held []*gotsem.Lease
	holds := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, l := range held {
			if l.Context().Err() == nil {
				n++
			}
		}
		return n
	}
	take := func(s *gotsem.Semaphore) {
		l, err := s.Try(ctx, "id")
		if err == nil {
			mu.Lock()
			held = append(held, l)
			mu.Unlock()
		} else if !errors.Is(err, gotsem.ErrUnavailable) && !errors.Is(err, gotsem.ErrRecovering) && !errors.Is(err, gotsem.ErrFull) {
			t.Error(err)
		}
	}
	soon(t, 10*time.Second, "both to admit their shares", func() bool {
		for _, s := range sems {
			take(s)
		}
		time.Sleep(20 * time.Millisecond)
		return holds() == 4
	})
	srv.Cont()
	began := time.Now()
	for time.Since(began) < 4*time.Second {
		for _, s := range sems {
			take(s)
		}
		if n := holds(); n > limit {
			t.Fatalf("%d of %d, %v after Redis came back", n, limit, time.Since(began).Round(time.Millisecond))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A master that hangs takes down the ids that it keeps. Leases and calls of others go on,
// however many ask for what it keeps.
func TestOtherShardsGoOnWhileOneHangs(t *testing.T) {
	for _, askers := range []int{0, 8} {
		t.Run(fmt.Sprint("askers=", askers), func(t *testing.T) {
			const ttl = 3 * time.Second
			c := redistest.StartCluster(t, 3, 0, redistest.WithArgs("--cluster-require-full-coverage", "no"))
			sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(c.Client(), prefix), Limit: 2, TTL: ttl, Outage: gotsem.Closed})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sem.Close() })
			ctx := context.Background()
			dead, live := "", ""
			var leases []*gotsem.Lease
			for i := 0; len(leases) < 50 || dead == ""; i++ {
				id := fmt.Sprint("id", i)
				if clusterSlot(t, c, id) < redistest.Slots/3 {
					dead = id
					continue
				}
				l, err := sem.Try(ctx, id)
				if err != nil {
					t.Fatal(err)
				}
				leases, live = append(leases, l), id
			}
			if l, err := sem.Try(ctx, dead); err != nil {
				t.Fatal(err)
			} else {
				_ = l.Release(ctx)
			}
			c.Nodes()[0].Stop()
			defer c.Nodes()[0].Cont()
			began := time.Now()
			var stop atomic.Bool
			var all sync.WaitGroup
			for range askers {
				all.Go(func() {
					for !stop.Load() {
						if _, err := sem.Try(ctx, dead); !errors.Is(err, gotsem.ErrUnavailable) {
							t.Errorf("a master that hangs: %v", err)
						}
						time.Sleep(20 * time.Millisecond)
					}
				})
			}
			refused, asked := 0, 0
			for time.Since(began) < 2*ttl {
				l, err := sem.Try(ctx, live)
				if asked++; err != nil {
					refused++
				} else {
					_ = l.Release(ctx)
				}
				time.Sleep(20 * time.Millisecond)
			}
			stop.Store(true)
			all.Wait()
			for _, l := range leases {
				if l.Context().Err() != nil {
					t.Errorf("a lease on another master: %v", context.Cause(l.Context()))
				}
			}
			if refused > asked/20 { // a busy machine may miss a StoreTimeout
				t.Errorf("%d of %d calls of another master were refused", refused, asked)
			}
			if n := sem.Stats().Outages; askers > 0 && n == 0 {
				t.Error("the master that hangs was not given up")
			}
		})
	}
}

// clusterSlot is where c keeps id.
func clusterSlot(t testing.TB, c *redistest.Cluster, id string) int {
	t.Helper()
	n, err := c.Nodes()[len(c.Nodes())-1].Do("CLUSTER", "KEYSLOT", prefix+id)
	if err != nil {
		t.Fatal(err)
	}
	return int(n.(int64))
}
