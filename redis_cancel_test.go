//go:build unix

package gotsem_test

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
