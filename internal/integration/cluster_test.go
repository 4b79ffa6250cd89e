//go:build unix

package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
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
	// What takes several keys says what is the matter, and is no outage of anybody.
	for name, call := range map[string]func() error{
		"weight 2": func() error { _, err := sem.Try(ctx, "{m}x", gotsem.Weight(2)); return err },
		"usage":    func() error { _, err := sem.Usage(ctx, "{m}x"); return err },
		"limit":    func() error { return sem.SetLimit(ctx, "{m}x", 3) },
		"reset":    func() error { return sem.ResetLimit(ctx, "{m}x") },
		"clear":    func() error { _, err := sem.Clear(ctx, "{m}x"); return err },
		"revoke":   func() error { _, err := sem.Revoke(ctx, "{m}x", "nobody's"); return err },
	} {
		if err := call(); !errors.Is(err, store.ErrMoving) || !strings.Contains(err.Error(), "{m}x") {
			t.Errorf("%s: %v, want store.ErrMoving, and whose", name, err)
		}
	}
	if n := sem.Stats().Outages; n != 0 {
		t.Errorf("%d outages", n)
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

// oddIDs are ids whose braces, lengths and bytes invite mistakes.
var oddIDs = []string{
	"a", "a{b}c", "a{b}d", "{b}", "{}", "}{", "{a", "a}", "{}a", "{}{a}", "{a}{b}", "{{a}}", "x:y", ":", " ", "%s", "*", "[a]", `\`,
	strings.Repeat("long", 256), "ümläut-日本語-🙂", "new\nline", "nul\x00byte", "\xff\xfe", "a:q", "a:m", "}:m", "a}:m",
}

// Odd ids on a Cluster: each has a limit of its own, and keys in one slot.
func TestEveryIDHasOneLimitOnACluster(t *testing.T) {
	cl := redistest.StartCluster(t, 3, 0)
	ctx := t.Context()
	sem := fullSem(t, cl.Client(), 2, func(o *gotsem.Options) { o.Queue = 5 })
	seed := seedSem(t, cl.Client(), time.Minute, 2)

	if r := seed.TryAcquire(ctx, ""); r.Acquired {
		t.Errorf("the empty id: %+v", r)
	}
	if _, err := sem.Try(ctx, ""); err == nil {
		t.Error("the empty id: no error")
	}
	var leases []*gotsem.Lease
	for _, id := range oddIDs {
		l, err := sem.Acquire(ctx, id)
		if err != nil {
			t.Fatalf("%q: %v", id, err)
		}
		leases = append(leases, l)
		if r := seed.TryAcquire(ctx, id); !r.Acquired || r.FailedOpen() || r.Active != 2 {
			t.Errorf("%q: %+v, want the second of 2: does it share a key with another?", id, r)
		}
		if err := sem.SetLimit(ctx, id, 2); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for i, id := range oddIDs {
		if _, err := sem.Try(ctx, id); !errors.Is(err, gotsem.ErrFull) {
			t.Errorf("%q: %v, want full", id, err)
		}
		hs, err := sem.Holders(ctx, id)
		if err != nil || len(hs) != 2 || hs[0].SlotID != leases[i].SlotID() {
			t.Errorf("%q: holders %v, %v", id, hs, err)
		}
		// A waiter of each, so that the line's key is used too.
		served := make(chan error, 1)
		go func() {
			l, err := sem.Acquire(ctx, id)
			if err == nil {
				err = l.Release(ctx)
			}
			served <- err
		}()
		soon(t, patience, "one to wait", func() bool { u, err := sem.Usage(ctx, id); return err == nil && u.Waiting == 1 })
		if err := leases[i].Release(ctx); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		if err := received(t, served, patience, fmt.Sprintf("the waiter of %q", id)); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	listed := make(map[string]bool)
	for id, err := range sem.IDs(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		listed[id] = true
	}
	for _, id := range oddIDs {
		if !listed[id] {
			t.Errorf("%q is held and not listed", id)
		}
		seed.ForceRelease(ctx, id)
		if n := seed.ActiveCount(ctx, id); n != 0 {
			t.Errorf("%q: %d active after clearing", id, n)
		}
	}
	if len(listed) != len(oddIDs) {
		t.Errorf("%d ids listed, want %d", len(listed), len(oddIDs))
	}
	if s := sem.Stats(); s.StoreErrors != 0 {
		t.Errorf("%d store errors", s.StoreErrors)
	}
}

// A slot of the Cluster moves to another node and back, under load: nobody is
// counted twice or forgotten.
func TestAMovedClusterSlotCountsEveryHolderOnce(t *testing.T) {
	cl := redistest.StartCluster(t, 3, 0)
	ctx := t.Context()
	const id, limit = "moving", 3
	var sems [2]*gotsem.Semaphore
	for i := range sems {
		sems[i] = fullSem(t, cl.Client(), limit, func(o *gotsem.Options) {
			o.TTL, o.Queue, o.StoreTimeout = 5*time.Second, 50, 2*time.Second
		})
	}
	var holders tally
	var unavailable atomic.Int64
	stop := make(chan struct{})
	var load sync.WaitGroup
	for worker := range 12 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				l, err := sems[worker%2].Acquire(ctx, id)
				switch {
				case errors.Is(err, gotsem.ErrUnavailable):
					unavailable.Add(1)
					continue
				case err != nil:
					t.Error(err)
					return
				}
				holders.in()
				time.Sleep(200 * time.Microsecond)
				holders.out()
				if err := l.Release(ctx); err != nil && !errors.Is(err, gotsem.ErrUnavailable) {
					t.Error(err)
				}
			}
		})
	}
	finish := sync.OnceFunc(func() { close(stop); load.Wait() })
	defer finish()
	// One that is held all along: its keys move with it.
	keep, err := sems[0].Acquire(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	holders.in()
	slot := redistest.Slot(prefix + id)
	from := cl.NodeFor(slot)
	to := cl.Nodes()[0]
	if to == from {
		to = cl.Nodes()[1]
	}
	for range 3 {
		m := cl.BeginMigration(slot, from, to)
		m.Move(1) // some of its keys here, some there
		m.Finish()
		from, to = to, from
		_, passed := holders.read()
		soon(t, patience, "grants to go on", func() bool { _, now := holders.read(); return now > passed+20 })
	}
	finish()
	if err := context.Cause(keep.Context()); err != nil {
		t.Errorf("the lease that was held all along ended: %v", err)
	}
	holders.out()
	if err := keep.Release(ctx); err != nil {
		t.Error(err)
	}
	most, passed := holders.read()
	t.Logf("%d holders passed, at most %d at once; %d calls found no answer", passed, most, unavailable.Load())
	if most > limit {
		t.Errorf("%d held at once, limit %d", most, limit)
	}
	soon(t, patience, "nothing to be held", func() bool {
		u, err := sems[1].Usage(ctx, id)
		return err == nil && u.Active == 0 && u.Waiting == 0
	})
}
