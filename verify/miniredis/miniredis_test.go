// Package miniredis runs the contract of the store, and what applications call, on
// miniredis, the Redis in Go that most Go projects test with. It shows that an
// application's tests can run so; what miniredis cannot show (fail-over, Cluster,
// time-outs, memory) stays with a real server.
package miniredis

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
	"github.com/ashfaqjani916/gotsem/store/storetest"
)

// place is a store, and the server that it has for itself.
type place struct {
	*redisstore.Store
	server *miniredis.Miniredis
}

const prefix = "mini:"

func client(t *testing.T, server *miniredis.Miniredis) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func open(t *testing.T, server *miniredis.Miniredis) place {
	s := redisstore.New(client(t, server), prefix)
	t.Cleanup(func() { _ = s.Close() })
	return place{s, server}
}

// start starts a server whose keys expire. By itself miniredis ends no key: a test says
// how much time has passed.
func start(t *testing.T) *miniredis.Miniredis {
	server := miniredis.RunT(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for last := time.Now(); ; {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				now := time.Now()
				server.FastForward(now.Sub(last))
				last = now
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
	return server
}

func TestContract(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		New:      func(t *testing.T) store.Store { return open(t, start(t)) },
		Peer:     func(t *testing.T, st store.Store) store.Store { return open(t, st.(place).server) },
		Unit:     300 * time.Millisecond,
		Parallel: true,
	})
}

// TestApplication calls what applications call.
func TestApplication(t *testing.T) {
	ctx := context.Background()
	server := start(t)
	rdb := client(t, server)

	t.Run("NewGotsem", func(t *testing.T) {
		sem := gotsem.NewGotsem(rdb, "seed:", time.Minute, 2, nil, nil)
		one, two := sem.TryAcquire(ctx, "x"), sem.TryAcquire(ctx, "x")
		if three := sem.TryAcquire(ctx, "x"); !one.Acquired || !two.Acquired || three.Acquired || three.Active != 2 || three.Max != 2 {
			t.Fatalf("%+v %+v %+v", one, two, three)
		}
		if n := sem.ActiveCount(ctx, "x"); n != 2 {
			t.Errorf("ActiveCount: %d", n)
		}
		sem.Release(ctx, "x", one.SlotID)
		if n := sem.ActiveCount(ctx, "x"); n != 1 {
			t.Errorf("ActiveCount after a release: %d", n)
		}
		sem.ForceRelease(ctx, "x")
		if n := sem.ActiveCount(ctx, "x"); n != 0 {
			t.Errorf("ActiveCount after ForceRelease: %d", n)
		}
	})

	sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(rdb, prefix), Limit: 2, Queue: 10, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sem.Close() }()

	t.Run("a release while somebody waits", func(t *testing.T) {
		first, err := sem.Try(ctx, "line", gotsem.Weight(2))
		if err != nil {
			t.Fatal(err)
		}
		type result struct {
			lease *gotsem.Lease
			err   error
		}
		got := make(chan result, 2)
		for range 2 {
			go func() {
				l, err := sem.Acquire(ctx, "line")
				got <- result{l, err}
			}()
		}
		waitFor(t, func() bool { u, err := sem.Usage(ctx, "line"); return err == nil && u.Waiting == 2 })
		if err := first.Release(ctx); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			r := <-got
			if r.err != nil {
				t.Fatal(r.err)
			}
			if err := r.lease.Release(ctx); err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("weights, limits and revoking", func(t *testing.T) {
		if err := sem.SetLimit(ctx, "heavy", 5); err != nil {
			t.Fatal(err)
		}
		l, err := sem.Try(ctx, "heavy", gotsem.Weight(4))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sem.Try(ctx, "heavy", gotsem.Weight(2)); !errors.Is(err, gotsem.ErrFull) {
			t.Errorf("4 of 5 are held, 2 more: %v", err)
		}
		if _, err := sem.Revoke(ctx, "heavy", l.SlotID()); err != nil {
			t.Fatal(err)
		}
		<-l.Context().Done()
		if u, err := sem.Usage(ctx, "heavy"); err != nil || u.Active != 0 || u.Limit != 5 {
			t.Errorf("after the revocation: %+v, %v", u, err)
		}
	})
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited for 10 s")
		}
	}
}
