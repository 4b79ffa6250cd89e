//go:build unix

package gotsem_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

// A semaphore within one process. With Store: redisstore.New(rdb, "sem:") it is one
// for all processes.
func ExampleNew() {
	sem, err := gotsem.New(gotsem.Options{Limit: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = sem.Close() }()

	ctx := context.Background()
	for range 3 {
		_, err := sem.Try(ctx, "project-1")
		fmt.Println(err == nil)
	}
	// Output:
	// true
	// true
	// false
}

// What is wrong with the options is said all at once.
func ExampleNew_options() {
	_, err := gotsem.New(gotsem.Options{TTL: time.Millisecond})
	fmt.Println(err)
	// Output:
	// gotsem: Options.Limit is 0: give the number of slots per id, at least 1 (or a LimitFunc)
	// gotsem: Options.TTL is 1ms: at least 200ms, so that a lease can be renewed in time
}

// A quick no, with the numbers.
func ExampleSemaphore_Try() {
	sem, _ := gotsem.New(gotsem.Options{Limit: 1})
	defer func() { _ = sem.Close() }()
	ctx := context.Background()

	lease, err := sem.Try(ctx, "project-1")
	fmt.Println("first:", err)

	_, err = sem.Try(ctx, "project-1")
	var full *gotsem.FullError
	if errors.As(err, &full) {
		fmt.Printf("second: full, %d of %d held\n", full.Active, full.Limit)
	}

	_ = lease.Release(ctx)
	_, err = sem.Try(ctx, "project-1")
	fmt.Println("third:", err)
	// Output:
	// first: <nil>
	// second: full, 1 of 1 held
	// third: <nil>
}

// Acquire waits in line, first come, first served.
func ExampleSemaphore_Acquire() {
	sem, _ := gotsem.New(gotsem.Options{Limit: 1})
	defer func() { _ = sem.Close() }()
	ctx := context.Background()

	first, _ := sem.Acquire(ctx, "browser")
	done := make(chan struct{})
	go func() {
		defer close(done)
		second, err := sem.Acquire(ctx, "browser") // waits until the first is released
		if err != nil {
			fmt.Println(err)
			return
		}
		defer func() { _ = second.Release(ctx) }()
		fmt.Println("second: fence is higher:", second.Fence() > first.Fence())
	}()
	fmt.Println("first: at work")
	_ = first.Release(ctx)
	<-done
	// Output:
	// first: at work
	// second: fence is higher: true
}

// Do acquires, runs and releases, whatever happens in between.
func ExampleSemaphore_Do() {
	sem, _ := gotsem.New(gotsem.Options{Limit: 1})
	defer func() { _ = sem.Close() }()
	ctx := context.Background()

	err := sem.Do(ctx, "project-1", func(ctx context.Context) error {
		u, _ := sem.Usage(ctx, "project-1")
		fmt.Println("at work:", u.Active, "held")
		return errors.New("the work failed")
	})
	u, _ := sem.Usage(ctx, "project-1")
	fmt.Println(err, "-", u.Active, "held")
	// Output:
	// at work: 1 held
	// the work failed - 0 held
}

// A heavy request takes several slots at once.
func ExampleWeight() {
	sem, _ := gotsem.New(gotsem.Options{Limit: 4})
	defer func() { _ = sem.Close() }()
	ctx := context.Background()

	heavy, _ := sem.Try(ctx, "renderer", gotsem.Weight(3))
	fmt.Println("weight", heavy.Weight())
	_, err := sem.Try(ctx, "renderer", gotsem.Weight(2))
	fmt.Println("two more:", errors.Is(err, gotsem.ErrFull))
	_, err = sem.Try(ctx, "renderer", gotsem.Weight(5))
	fmt.Println("five:", errors.Is(err, gotsem.ErrTooHeavy))
	// Output:
	// weight 3
	// two more: true
	// five: true
}

// MaxWait bounds the wait, apart from the context.
func ExampleMaxWait() {
	sem, _ := gotsem.New(gotsem.Options{Limit: 1})
	defer func() { _ = sem.Close() }()
	ctx := context.Background()

	_, _ = sem.Try(ctx, "project-1")
	_, err := sem.Acquire(ctx, "project-1", gotsem.MaxWait(20*time.Millisecond))
	fmt.Println(errors.Is(err, gotsem.ErrFull), errors.Is(err, gotsem.ErrWaitTooLong))
	// Output: true true
}

// SetLimit changes a limit for every process that shares the store.
func ExampleSemaphore_SetLimit() {
	sem, _ := gotsem.New(gotsem.Options{Limit: 1})
	defer func() { _ = sem.Close() }()
	ctx := context.Background()

	_, _ = sem.Try(ctx, "project-1")
	_, err := sem.Try(ctx, "project-1")
	fmt.Println(errors.Is(err, gotsem.ErrFull))

	_ = sem.SetLimit(ctx, "project-1", 2)
	_, err = sem.Try(ctx, "project-1")
	fmt.Println(err)

	_ = sem.ResetLimit(ctx, "project-1") // Options.Limit counts again
	u, _ := sem.Usage(ctx, "project-1")
	fmt.Println(u.Active, "held, limit", u.Limit)
	// Output:
	// true
	// <nil>
	// 2 held, limit 1
}

// Who holds what.
func ExampleSemaphore_Holders() {
	sem, _ := gotsem.New(gotsem.Options{Limit: 10, Label: "worker"})
	defer func() { _ = sem.Close() }()
	ctx := context.Background()

	lease, _ := sem.Try(ctx, "project-1", gotsem.Weight(2))
	holders, err := sem.Holders(ctx, "project-1")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, h := range holders {
		fmt.Println(h.SlotID == lease.SlotID(), h.Fence == lease.Fence(), "weight", h.Weight, "by", h.Owner[len(h.Owner)-len("worker"):])
	}
	// Output: true true weight 2 by worker
}

// Revoke takes a lease away; its holder's context ends.
func ExampleSemaphore_Revoke() {
	sem, _ := gotsem.New(gotsem.Options{Limit: 1})
	defer func() { _ = sem.Close() }()
	ctx := context.Background()

	lease, _ := sem.Try(ctx, "project-1")
	ok, err := sem.Revoke(ctx, "project-1", lease.SlotID())
	fmt.Println(ok, err)

	<-lease.Context().Done()
	fmt.Println(context.Cause(lease.Context()))

	_, err = sem.Try(ctx, "project-1")
	fmt.Println(err)
	// Output:
	// true <nil>
	// gotsem: "project-1": lease lost: it was revoked
	// <nil>
}

// How an id stands.
func ExampleSemaphore_Usage() {
	sem, _ := gotsem.New(gotsem.Options{Limit: 3})
	defer func() { _ = sem.Close() }()
	ctx := context.Background()

	_, _ = sem.Try(ctx, "project-1", gotsem.Weight(2))
	u, err := sem.Usage(ctx, "project-1")
	fmt.Println(u.Active, "of", u.Limit, "held,", u.Waiting, "waiting", err)
	// Output: 2 of 3 held, 0 waiting <nil>
}
