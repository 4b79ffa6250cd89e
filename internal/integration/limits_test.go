//go:build unix

package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// A limit is for every process, whatever it remembers; raising it wakes, lowering
// takes nothing away.
func TestASetLimitHoldsForEveryProcess(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx := t.Context()
	var sems [3]*gotsem.Semaphore
	for i := range sems {
		sems[i] = fullSem(t, srv.Client(), 10, func(o *gotsem.Options) { o.Queue = 20; o.TTL = time.Minute })
	}
	var held []*gotsem.Lease
	for i := range 10 {
		l, err := sems[i%3].Acquire(ctx, "limit")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, l)
	}
	granted := make(chan *gotsem.Lease, 10)
	for i := range 5 {
		go func() {
			if l, err := sems[i%3].Acquire(ctx, "limit"); err == nil {
				granted <- l
			} else if ctx.Err() == nil {
				t.Errorf("waiter %d: %v", i, err)
			}
		}()
	}
	soon(t, patience, "5 to stand in line", func() bool { return len(waiting(t, srv, "limit")) == 5 })
	set := func(n int) {
		t.Helper()
		if err := sems[0].SetLimit(ctx, "limit", n); err != nil {
			t.Fatal(err)
		}
	}
	none := func(what string) {
		t.Helper()
		// Every process asks for itself: who would be granted would be now.
		for i, sem := range sems {
			if _, err := sem.Try(ctx, "limit"); !errors.Is(err, gotsem.ErrFull) {
				t.Errorf("%s: process %d: %v, want full", what, i, err)
			}
		}
		if len(granted) != 0 {
			t.Fatalf("%s: a waiter was granted", what)
		}
	}

	set(4)
	none("10 held of 4")
	for _, l := range held {
		if err := l.Context().Err(); err != nil {
			t.Errorf("lowering the limit ended a lease: %v", err)
		}
	}
	for range 6 {
		if err := held[0].Release(ctx); err != nil {
			t.Fatal(err)
		}
		held = held[1:]
	}
	none("4 held of 4")
	if err := held[0].Release(ctx); err != nil {
		t.Fatal(err)
	}
	held = append(held[1:], received(t, granted, patience, "a grant when less than 4 are held"))
	none("4 held of 4 again")

	began := time.Now()
	set(12)
	for range 4 {
		held = append(held, received(t, granted, patience, "the rest of the line to be woken by a higher limit"))
	}
	t.Logf("raising the limit woke 4 in %v", time.Since(began))

	set(0)
	for range 8 {
		if err := held[0].Release(ctx); err != nil {
			t.Fatal(err)
		}
		held = held[1:]
	}
	for i, sem := range sems {
		var full *gotsem.FullError
		if _, err := sem.Try(ctx, "limit"); !errors.As(err, &full) || full.Limit != 0 {
			t.Errorf("paused: process %d: %v, want full with limit 0", i, err)
		}
	}
	paused := make(chan error, 1)
	go func() {
		l, err := sems[1].Acquire(ctx, "limit")
		if err == nil {
			err = l.Release(ctx)
		}
		paused <- err
	}()
	soon(t, patience, "one to wait on a paused id", func() bool { return len(waiting(t, srv, "limit")) == 1 })
	if err := sems[2].ResetLimit(ctx, "limit"); err != nil {
		t.Fatal(err)
	}
	if err := received(t, paused, patience, "the pause to end"); err != nil {
		t.Fatal(err)
	}
	u, err := sems[0].Usage(ctx, "limit")
	if err != nil || u.LimitSet || u.Limit != 10 || u.Active != 0 {
		t.Errorf("%+v, %v, want nothing held of 10, not set", u, err)
	}
}
