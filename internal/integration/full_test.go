//go:build unix

package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// A Redis under noeviction whose memory is used up, as the README asks for: who holds goes on holding for as long as that lasts, what
// is released is free, the freed room goes to who waits, and the store is given up once and comes back once.
func TestAFullRedisKeepsItsHolders(t *testing.T) {
	for _, policy := range []gotsem.Outage{gotsem.Open, gotsem.Closed, gotsem.Local} {
		t.Run(policy.String(), func(t *testing.T) {
			t.Parallel()
			const ttl = 2 * time.Second
			srv := redistest.Start(t)
			rdb := srv.Client()
			st := redisstore.New(rdb, "sem:")
			t.Cleanup(func() { _ = st.Close() })
			sem, err := gotsem.New(gotsem.Options{Store: st, Limit: 1, TTL: ttl, StoreTimeout: ttl / 2, Outage: policy})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sem.Close() })
			ctx := t.Context()
			var leases []*gotsem.Lease
			for i := range 20 {
				l, err := sem.Try(ctx, fmt.Sprint("id", i))
				if err != nil {
					t.Fatal(err)
				}
				leases = append(leases, l)
			}
			handed := make(chan error, 1)
			go func() {
				l, err := sem.Acquire(ctx, "id0")
				if err == nil && l.FailedOpen() {
					err = fmt.Errorf("admitted without the store")
				}
				handed <- err
			}()
			soon(t, patience, "a waiter", func() bool { return sem.Stats().Queued == 1 })

			set(t, srv, "maxmemory", 1)
			if err := leases[0].Release(ctx); err != nil {
				t.Errorf("Release: %v", err)
			}
			select {
			case err := <-handed:
				if err != nil {
					t.Errorf("the room that was freed: %v", err)
				}
			case <-time.After(patience):
				t.Error("the room that was freed goes to nobody")
			}
			if err := leases[1].Release(ctx); err != nil {
				t.Errorf("Release: %v", err)
			}
			if u, err := sem.Usage(ctx, "id1"); err != nil || u.Active != 0 {
				t.Errorf("released: %+v, %v", u, err)
			}
			full, cancel := context.WithTimeout(ctx, 3*ttl)
			defer cancel()
			for full.Err() == nil { // others are refused all the time
				if l, err := sem.Try(ctx, "new"); err == nil {
					_ = l.Release(ctx)
				}
				sleep(full, 20*time.Millisecond)
			}
			for i, l := range leases[2:] {
				if l.Context().Err() != nil {
					t.Errorf("lease %d of a full Redis: %v", i+2, context.Cause(l.Context()))
				}
			}
			if n := sem.Stats().Outages; n > 1 {
				t.Errorf("given up %d times", n)
			}
			set(t, srv, "maxmemory", 0)
			soon(t, patience, "a lease", func() bool {
				l, err := sem.Try(ctx, "new")
				return err == nil && !l.FailedOpen() && l.Release(ctx) == nil
			})
			for _, l := range leases[2:] {
				if err := l.Release(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
