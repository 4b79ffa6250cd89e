//go:build unix

package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// Leases of several ids, on ids that share a server and on ids that do not, of random
// weights and classes: from several processes the limits hold at each id at all times, also
// while connections are cut and replies lost, everybody gets on, and nothing stays.
func TestLimitsOfSeveralIDsHold(t *testing.T) {
	single := redistest.Start(t)
	cluster := redistest.StartCluster(t, 3, 0)
	relay := redistest.NewRelay(t, single.Addr())
	for name, connect := range map[string]func() redis.UniversalClient{
		"single":  func() redis.UniversalClient { return single.Client() },
		"cluster": func() redis.UniversalClient { return cluster.Client() },
		"single, with faults": func() redis.UniversalClient {
			rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
			t.Cleanup(func() { _ = rdb.Close() })
			return rdb
		},
	} {
		t.Run(name, func(t *testing.T) {
			limits := map[string]int{"key": 2, "tenant": 3, "all": 5}
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
			defer cancel()
			tallies := make(map[string]*tally)
			for _, id := range []string{"key:0", "key:1", "key:2", "tenant:0", "tenant:1", "all"} {
				tallies[id] = new(tally)
			}
			var all sync.WaitGroup
			var sems []*gotsem.Semaphore
			for p := range 2 {
				sem := fullSem(t, connect(), 1, func(o *gotsem.Options) {
					o.TTL, o.Queue = 2*time.Second, 50
					o.LimitFunc = func(_ context.Context, id string) (int, error) {
						for kind, n := range limits {
							if len(id) >= len(kind) && id[:len(kind)] == kind {
								return n, nil
							}
						}
						return 0, errors.New(id)
					}
				})
				sems = append(sems, sem)
				for w := range 8 {
					all.Go(func() { severalLoad(ctx, t, sem, rand.New(rand.NewPCG(uint64(p), uint64(w))), tallies) })
				}
			}
			if name == "single, with faults" {
				all.Go(func() { disturb(ctx, relay) })
			}
			all.Wait()
			passed := 0
			for id, c := range tallies {
				most, n := c.read()
				passed += n
				limit := limits[id[:min(len(id), map[byte]int{'k': 3, 't': 6, 'a': 3}[id[0]])]]
				if most > limit {
					t.Errorf("%s: %d at once of %d", id, most, limit)
				}
				if n == 0 {
					t.Errorf("%s: nobody got in", id)
				}
			}
			t.Logf("%d slots taken", passed)
			for id := range tallies {
				soon(t, patience, id+" to be free", func() bool {
					u, err := sems[0].Usage(context.Background(), id)
					return err == nil && u.Active == 0 && u.Waiting == 0
				})
			}
		})
	}
}

// disturb cuts connections and loses replies until ctx is over.
func disturb(ctx context.Context, relay *redistest.Relay) {
	for n := 0; ctx.Err() == nil; n++ {
		if n%3 == 0 {
			relay.CutAll()
		} else {
			relay.DropReplies(1 + n%4)
		}
		sleep(ctx, 150*time.Millisecond)
	}
	relay.DropReplies(0)
}

// severalLoad takes leases of several ids, in all ways in which a call may end.
func severalLoad(ctx context.Context, t *testing.T, sem *gotsem.Semaphore, r *rand.Rand, tallies map[string]*tally) {
	for ctx.Err() == nil {
		k := r.IntN(3)
		ids := []string{fmt.Sprint("key:", k), fmt.Sprint("tenant:", k%2), "all"}[r.IntN(2):]
		var opts []gotsem.Option
		weights := make([]int, len(ids))
		for i, id := range ids {
			if weights[i] = 1 + r.IntN(8)/6; i > 0 {
				opts = append(opts, gotsem.Also(id, gotsem.Weight(weights[i])))
			}
		}
		opts = append(opts, gotsem.Weight(weights[0]), gotsem.As([]gotsem.Class{gotsem.Sheddable, gotsem.Batch, gotsem.Default, gotsem.Critical}[r.IntN(4)]))
		call, cancel := context.WithCancel(ctx)
		if r.IntN(4) == 0 {
			call, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(60))*time.Millisecond)
		}
		var l *gotsem.Lease
		var err error
		switch r.IntN(3) {
		case 0:
			l, err = sem.Try(call, ids[0], opts...)
		case 1:
			l, err = sem.Acquire(call, ids[0], append(opts, gotsem.MaxWait(time.Duration(r.IntN(100))*time.Millisecond))...)
		default:
			l, err = sem.Acquire(call, ids[0], opts...)
		}
		if err != nil {
			cancel()
			// A busy machine may take longer than a call has, or look like a clock that jumped.
			busy := errors.Is(err, gotsem.ErrUnavailable) || errors.Is(err, gotsem.ErrRecovering)
			if !errors.Is(err, gotsem.ErrFull) && !errors.Is(err, gotsem.ErrQueueFull) && !busy && call.Err() == nil {
				t.Errorf("%v", err)
			}
			time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
			continue
		}
		for i, id := range l.IDs() {
			for range weights[i] {
				tallies[id].in()
			}
		}
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
		for i, id := range l.IDs() {
			for range weights[i] {
				tallies[id].out()
			}
		}
		if err := l.Release(context.Background()); err != nil && !errors.Is(err, gotsem.ErrUnavailable) {
			t.Error(err)
		}
		cancel()
	}
}

// A revocation at any id, and a loss of the server's memory, concern the whole lease.
func TestALeaseOfSeveralIDsIsOneOnRedis(t *testing.T) {
	srv := redistest.Start(t)
	sem := fullSem(t, srv.Client(), 2, func(o *gotsem.Options) { o.TTL = 2 * time.Second })
	for _, id := range []string{"key", "tenant", "all"} {
		l, err := sem.Try(t.Context(), "key", gotsem.Also("tenant"), gotsem.Also("all", gotsem.Weight(2)))
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := sem.Revoke(t.Context(), id, l.SlotID()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		received(t, l.Context().Done(), patience, "the end of the lease")
		for _, id := range l.IDs() {
			soon(t, patience, id+" to be free", func() bool { u, err := sem.Usage(t.Context(), id); return err == nil && u.Active == 0 })
		}
	}
	l, err := sem.Try(t.Context(), "key", gotsem.Also("tenant"), gotsem.Also("all", gotsem.Weight(2)))
	if err != nil {
		t.Fatal(err)
	}
	do(t, srv, "FLUSHALL")
	for id, active := range map[string]int{"key": 1, "tenant": 1, "all": 2} {
		soon(t, patience, id+" to be registered again", func() bool { u, err := sem.Usage(t.Context(), id); return err == nil && u.Active == active })
	}
	if l.Context().Err() != nil {
		t.Error(context.Cause(l.Context()))
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// Who stands in line with a head start keeps its place through a loss of the server's
// memory, after the grace.
func TestAHeadStartOutlastsALossOfMemory(t *testing.T) {
	srv := redistest.Start(t)
	sem := fullSem(t, srv.Client(), 1, func(o *gotsem.Options) { o.TTL, o.Queue, o.Grace = 2*time.Second, 9, 3*time.Second })
	holder, err := sem.Acquire(t.Context(), "id")
	if err != nil {
		t.Fatal(err)
	}
	order := make(chan gotsem.Class, 3)
	var all sync.WaitGroup
	for n, class := range []gotsem.Class{gotsem.Sheddable, gotsem.Default, gotsem.Critical} {
		all.Go(func() {
			l, err := sem.Acquire(t.Context(), "id", gotsem.As(class))
			if err != nil {
				t.Error(err)
				return
			}
			order <- class
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
		soon(t, patience, "one more in line", func() bool { return sem.Stats().Queued == uint64(n+1) })
	}
	do(t, srv, "FLUSHALL")
	soon(t, patience, "the line to stand again", func() bool {
		u, err := sem.Usage(t.Context(), "id")
		return err == nil && u.Waiting == 3 && u.Active == 1
	})
	if err := holder.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	for _, want := range []gotsem.Class{gotsem.Critical, gotsem.Sheddable, gotsem.Default} {
		if got := <-order; got != want {
			t.Errorf("%v was next, want %v", got, want)
		}
	}
}
