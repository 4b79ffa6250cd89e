//go:build unix

package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/leaktest"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// Close answers who waits, gives back what is held, and leaves no goroutine.
func TestCloseLeavesNothing(t *testing.T) {
	single := redistest.Start(t)
	cluster := redistest.StartCluster(t, 3, 0)
	for name, connect := range map[string]func() redis.UniversalClient{
		"single": func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: single.Addr()}) },
		"cluster": func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
		},
		"wrapped": func() redis.UniversalClient {
			return wrapped{redis.NewClient(&redis.Options{Addr: single.Addr()})}
		},
	} {
		t.Run(name, func(t *testing.T) {
			check := leaktest.Begin(t)
			rdb := connect()
			st := redisstore.New(rdb, "close-"+name+":")
			sem, err := gotsem.New(gotsem.Options{Store: st, Limit: 3, Queue: 10, TTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			var leases []*gotsem.Lease
			for range 3 {
				l, err := sem.Acquire(ctx, "x")
				if err != nil {
					t.Fatal(err)
				}
				leases = append(leases, l)
			}
			told := make(chan error, 5)
			for range cap(told) {
				go func() {
					_, err := sem.Acquire(ctx, "x")
					told <- err
				}()
			}
			soon(t, patience, "5 to wait", func() bool { u, err := sem.Usage(ctx, "x"); return err == nil && u.Waiting == 5 })
			began := time.Now()
			if err := sem.Close(); err != nil {
				t.Error(err)
			}
			t.Logf("closed in %v", time.Since(began))
			for range cap(told) {
				if err := received(t, told, patience, "a waiter's answer"); !errors.Is(err, gotsem.ErrClosed) {
					t.Errorf("a waiter: %v, want ErrClosed", err)
				}
			}
			for _, l := range leases {
				if cause := context.Cause(l.Context()); !errors.Is(cause, gotsem.ErrClosed) {
					t.Errorf("a lease ended with %v, want ErrClosed", cause)
				}
				if err := l.Release(ctx); err != nil {
					t.Error(err)
				}
			}
			if _, err := sem.Try(ctx, "x"); !errors.Is(err, gotsem.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
			if u, err := st.Usage(ctx, "x", 3); err != nil || u.Active != 0 || u.Waiting != 0 {
				t.Errorf("%+v, %v, want nothing held and nobody waiting", u, err)
			}
			if err := rdb.Ping(ctx).Err(); err != nil {
				t.Errorf("the client was closed: %v", err)
			}
			_ = st.Close()
			_ = rdb.Close()
			check()
		})
	}
}
