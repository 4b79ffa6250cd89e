//go:build unix

package redisstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
)

// A node of a Cluster that hangs holds up nobody whose id lies on another: not a call, and
// not a renewal.
func TestOneNodeThatHangsHoldsUpNoOther(t *testing.T) {
	for name, own := range map[string]bool{"client": false, "own deadlines": true} {
		t.Run(name, func(t *testing.T) {
			c := redistest.StartCluster(t, 3, 0, redistest.WithArgs("--cluster-require-full-coverage", "no"))
			s := opened(t, c.Client(func(o *redis.ClusterOptions) { o.ContextTimeoutEnabled = own }), "sem:")
			const budget = time.Second
			take := func(ctx context.Context, id, slot string) error {
				_, err := s.Acquire(ctx, &store.Request{ID: id, SlotID: slot, Weight: 1, Limit: 1 << 20, TTL: time.Minute, Plain: true, Budget: budget})
				return err
			}
			if at := s.Partition("a"); at != "" {
				t.Errorf("before anything is known %q serves it", at)
			}
			nodes := make(map[string][]string)
			for i := range 60 {
				id := fmt.Sprint("id", i)
				if err := take(t.Context(), id, "warm"); err != nil {
					t.Fatal(err)
				}
				if want := c.NodeFor(redistest.Slot("sem:" + id)).Addr(); s.Partition(id) != want {
					t.Errorf("%s is served by %s, not by %q", id, want, s.Partition(id))
				}
				nodes[s.Partition(id)] = append(nodes[s.Partition(id)], id)
			}
			if len(nodes) != 3 {
				t.Fatalf("%d nodes serve ids", len(nodes))
			}
			dead := c.NodeFor(redistest.Slot("sem:id0"))
			dead.Stop()
			defer dead.Cont()
			stop := make(chan struct{})
			var asked sync.WaitGroup
			var hung atomic.Int64
			for w := range 32 {
				asked.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						if take(t.Context(), nodes[dead.Addr()][i%len(nodes[dead.Addr()])], fmt.Sprintf("dead-%d-%d", w, i)) != nil {
							hung.Add(1)
						}
					}
				})
			}
			soon(t, "calls to hang", func() bool { return hung.Load() > 0 })
			var all sync.WaitGroup
			for addr, ids := range nodes {
				if addr == dead.Addr() {
					continue
				}
				for i, id := range ids {
					all.Go(func() {
						for j := range 20 {
							slot := fmt.Sprint(i, "-", j)
							if err := take(t.Context(), id, slot); err != nil {
								t.Errorf("%s, which another node serves: %v", id, err)
							}
							ctx, cancel := context.WithTimeout(t.Context(), budget)
							if r := s.Renew(ctx, []store.Renewal{{ID: id, SlotID: slot, TTL: time.Minute, Weight: 1}})[0]; r.Err != nil {
								t.Errorf("a renewal of %s, which another node serves: %v", id, r.Err)
							}
							cancel()
						}
					})
				}
			}
			all.Wait()
			close(stop)
			asked.Wait()
		})
	}
}
