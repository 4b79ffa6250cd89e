//go:build unix

package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// As golang.org/x/sync's own TestWeightedAcquireCanceled: the ctx ends before there is
// room, so that the Acquire must fail; and when it has returned, it must leave nothing.
func TestACancelledAcquireLeavesNothingOnRedis(t *testing.T) {
	srv := redistest.Start(t)
	sem := fullSem(t, srv.Client(), 2, nil)
	background := context.Background()
	for i := range 1000 {
		ctx, cancel := context.WithCancel(background)
		one, err := sem.Acquire(background, "id")
		if err != nil {
			t.Fatal(i, err)
		}
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			for {
				l, err := sem.Try(background, "id")
				if err != nil {
					break
				}
				_ = l.Release(background)
			}
			cancel()
			_ = one.Release(background)
		}()
		if l, err := sem.Acquire(ctx, "id", gotsem.Weight(2)); !errors.Is(err, context.Canceled) {
			t.Fatalf("round %d: %v, %v: granted after its ctx was cancelled", i, l, err)
		}
		<-gone
		both, err := sem.Try(background, "id", gotsem.Weight(2))
		if err != nil {
			t.Fatalf("round %d: a Try right after it: %v", i, err)
		}
		_ = both.Release(background)
	}
}

// Nothing listens where Redis should be: that is not "full".
func TestNoRedisIsNotFull(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	st := redisstore.New(rdb, prefix)
	defer st.Close()
	sem, err := gotsem.New(gotsem.Options{Store: st, Limit: 10, Queue: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer sem.Close()
	_, err = sem.Acquire(context.Background(), "project-7", gotsem.MaxWait(1500*time.Millisecond))
	if !errors.Is(err, gotsem.ErrUnavailable) || errors.Is(err, gotsem.ErrFull) || errors.Is(err, gotsem.ErrQueueFull) {
		t.Errorf("%v", err)
	}
	t.Log(err)
}

// A ctx that is over acquires nothing, whatever the outage policy, Redis there or
// not, and says nothing about the store.
func TestAnEndedContextAcquiresNothing(t *testing.T) {
	srv := redistest.Start(t)
	refused := redistest.NewRelay(t, srv.Addr())
	refused.Refuse(true)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()

	for _, policy := range []gotsem.Outage{gotsem.Open, gotsem.Closed, gotsem.Local} {
		for where, addr := range map[string]string{"there": srv.Addr(), "refusing": refused.Addr()} {
			t.Run(policy.String()+"/"+where, func(t *testing.T) {
				rdb := redis.NewClient(&redis.Options{Addr: addr})
				t.Cleanup(func() { _ = rdb.Close() })
				sem := fullSem(t, rdb, 1, func(o *gotsem.Options) { o.Outage = policy })
				id := "over-" + policy.String()
				for _, held := range []bool{false, true} {
					if held && where == "there" {
						if _, err := sem.Try(t.Context(), id); err != nil {
							t.Fatal(err)
						}
					}
					before := len(members(t, srv, id))
					for range 10 { // twice what the breaker needs
						for _, ctx := range []context.Context{cancelled, late} {
							if _, err := sem.Try(ctx, id); !errors.Is(err, ctx.Err()) {
								t.Fatalf("Try: %v, want %v", err, ctx.Err())
							}
							if _, err := sem.Acquire(ctx, id); !errors.Is(err, ctx.Err()) {
								t.Fatalf("Acquire: %v, want %v", err, ctx.Err())
							}
							if r := sem.TryAcquire(ctx, id); r.Acquired || r.SlotID != "" {
								t.Fatalf("TryAcquire: %+v, want not acquired", r)
							}
							if err := sem.Do(ctx, id, func(context.Context) error { t.Error("Do ran"); return nil }); !errors.Is(err, ctx.Err()) {
								t.Fatalf("Do: %v, want %v", err, ctx.Err())
							}
						}
					}
					if after := len(members(t, srv, id)); after != before {
						t.Errorf("%d members, there were %d", after, before)
					}
				}
				if s := sem.Stats(); s.StoreErrors != 0 || s.Outages != 0 || s.Down || s.FailedOpen != 0 || s.Waiting != 0 {
					t.Errorf("the store was blamed for it: %+v", s)
				}
			})
		}
	}
}
