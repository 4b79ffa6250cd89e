//go:build unix

package gotsem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// startRedis starts a Redis for an example, and returns a client of it.
func startRedis() (rdb *redis.Client, stop func()) {
	srv, end, err := redistest.Launch("example", func(tb redistest.TB) *redistest.Server { return redistest.Start(tb) })
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	rdb = redis.NewClient(&redis.Options{Addr: srv.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		end()
	}
}

// Basic set-up.
func ExampleNewGotsem() {
	rdb, stop := startRedis() // redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer stop()

	logger, _ := zap.NewProduction()

	sem := gotsem.NewGotsem(
		rdb,
		"sem:",         // key prefix: Redis keys will be "sem:<ID>"
		30*time.Second, // slot TTL: how long a slot is held at most if Release is never called
		10,             // default max concurrent slots per ID
		nil,            // planFn: nil to always use defaultMax
		logger.Sugar(), // nil to silence all logs
	)

	result := sem.TryAcquire(context.Background(), "project-1")
	fmt.Println(result.Acquired, result.Active, result.Max)

	key := rdb.Type(context.Background(), "sem:project-1").Val()
	fmt.Println("sem:project-1 is a", key)
	// Output:
	// true 1 10
	// sem:project-1 is a zset
}

// Acquire and release a slot.
func ExampleSemaphore_TryAcquire() {
	rdb, stop := startRedis()
	defer stop()
	sem := gotsem.NewGotsem(rdb, "sem:", 30*time.Second, 1, nil, nil)

	handleRequest := func(ctx context.Context, projectID string, work func()) error {
		result := sem.TryAcquire(ctx, projectID)
		if !result.Acquired {
			return fmt.Errorf("concurrency limit reached (%d/%d active)", result.Active, result.Max)
		}
		defer sem.Release(ctx, projectID, result.SlotID)

		work()
		return nil
	}

	ctx := context.Background()
	err := handleRequest(ctx, "project-1", func() {
		fmt.Println("a second one meanwhile:", handleRequest(ctx, "project-1", func() {}))
	})
	fmt.Println("the first one:", err)
	fmt.Println("one after it:", handleRequest(ctx, "project-1", func() {}))
	// Output:
	// a second one meanwhile: concurrency limit reached (1/1 active)
	// the first one: <nil>
	// one after it: <nil>
}

// Release goes on when the request's context is over.
func ExampleSemaphore_Release() {
	rdb, stop := startRedis()
	defer stop()
	sem := gotsem.NewGotsem(rdb, "sem:", 30*time.Second, 1, nil, nil)

	ctx, cancel := context.WithCancel(context.Background())
	result := sem.TryAcquire(ctx, "project-1")
	cancel() // the client has hung up
	sem.Release(ctx, "project-1", result.SlotID)

	fmt.Println(sem.ActiveCount(context.Background(), "project-1"), "active")
	// Output: 0 active
}

// Dynamic limits per project: planFn says how many.
func ExampleNewGotsem_planFn() {
	rdb, stop := startRedis()
	defer stop()

	planFn := func(_ context.Context, id string) (int, error) {
		switch id {
		case "pro":
			return 50, nil
		case "free":
			return 2, nil
		}
		return 0, errors.New("no such customer") // the default, until it is asked again
	}
	sem := gotsem.NewGotsem(rdb, "sem:", 30*time.Second, 5, planFn, nil)

	for _, id := range []string{"pro", "free", "unknown"} {
		fmt.Println(id, sem.TryAcquire(context.Background(), id).Max)
	}
	// Output:
	// pro 50
	// free 2
	// unknown 5
}

// Emergency drain: for a deployment that is stuck.
func ExampleSemaphore_ForceRelease() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()
	sem := gotsem.NewGotsem(rdb, "sem:", 30*time.Second, 2, nil, nil)

	sem.TryAcquire(ctx, "project-1")
	sem.TryAcquire(ctx, "project-1")
	fmt.Println(sem.TryAcquire(ctx, "project-1").Acquired)

	sem.ForceRelease(ctx, "project-1")
	fmt.Println(sem.TryAcquire(ctx, "project-1").Acquired)
	// Output:
	// false
	// true
}

// Observability.
func ExampleSemaphore_ActiveCount() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()
	sem := gotsem.NewGotsem(rdb, "sem:", 30*time.Second, 10, nil, nil)

	projectID := "project-1"
	for range 3 {
		sem.TryAcquire(ctx, projectID)
	}
	active := sem.ActiveCount(ctx, projectID)
	fmt.Printf("%s has %d active slots\n", projectID, active)
	// Output: project-1 has 3 active slots
}

// With Redis away, calls are admitted, and marked.
func ExampleAcquireResult_FailedOpen() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nobody is there
	defer func() { _ = rdb.Close() }()
	sem := gotsem.NewGotsem(rdb, "sem:", 100*time.Millisecond, 10, nil, nil)
	defer func() { _ = sem.Close() }() // no need, but that it would look for Redis for a minute

	result := sem.TryAcquire(context.Background(), "project-1")
	fmt.Println(result.Acquired, result.FailedOpen(), result.Active)
	sem.Release(context.Background(), "project-1", result.SlotID) // nothing to give back
	// Output: true true 0
}
