//go:build unix

package gotsem_test

import (
	"context"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// A cluster slot is opened for migration and no key has been moved, as an interrupted
// redis-cli leaves it: its leases are kept, NewGotsem counts, and other slots do not notice.
func TestLeasesInAnOpenClusterSlot(t *testing.T) {
	c := redistest.StartCluster(t, 2, 0)
	rdb := c.Client()
	sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(rdb, prefix), Limit: 2, TTL: 2 * time.Second, Outage: gotsem.Closed})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sem.Close() }()
	seed := gotsem.NewGotsem(rdb, "seed:", time.Minute, 2, nil, nil)
	ctx := context.Background()
	held, err := sem.Try(ctx, "{m}x")
	if err != nil {
		t.Fatal(err)
	}
	plain := seed.TryAcquire(ctx, "{m}y")
	slot := redistest.Slot("{m}")
	from, to := c.NodeFor(slot), c.Nodes()[0]
	if to == from {
		to = c.Nodes()[1]
	}
	m := c.BeginMigration(slot, from, to)
	for began := time.Now(); time.Since(began) < 4*time.Second; { // two TTLs
		if err := held.Context().Err(); err != nil {
			t.Fatalf("lost after %v: %v", time.Since(began), context.Cause(held.Context()))
		}
		if l, err := sem.Try(ctx, "{m}x"); err != nil {
			t.Fatal(err)
		} else if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
		if l, err := sem.Try(ctx, "{other}x"); err != nil {
			t.Fatal(err)
		} else if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
		r := seed.TryAcquire(ctx, "{m}y")
		if !r.Acquired || r.FailedOpen() || r.Active != 2 {
			t.Fatalf("%+v", r)
		}
		if r := seed.TryAcquire(ctx, "{m}y"); r.Acquired || r.Active != 2 {
			t.Fatalf("above the limit: %+v", r)
		}
		seed.Release(ctx, "{m}y", r.SlotID)
	}
	m.Finish()
	if err := held.Release(ctx); err != nil {
		t.Error(err)
	}
	seed.Release(ctx, "{m}y", plain.SlotID)
	if u, err := sem.Usage(ctx, "{m}x"); err != nil || u.Active != 0 {
		t.Errorf("%+v, %v", u, err)
	}
}
