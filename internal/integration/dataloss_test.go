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
)

// Scripts are flushed all the time: nobody hears of it.
func TestScriptFlushesGoUnnoticed(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx := t.Context()
	// Short, so that renewals run too.
	sem := fullSem(t, srv.Client(), 4, func(o *gotsem.Options) { o.TTL = 1500 * time.Millisecond; o.Queue = 100 })
	seed, logs := loudSem(t, srv.Client(), 10*time.Second, 4)
	stop := make(chan struct{})
	n := 0
	var flusher sync.WaitGroup
	flusher.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if _, err := srv.Do("SCRIPT", "FLUSH"); err != nil {
					t.Error(err)
				}
				n++
			case <-stop:
				return
			}
		}
	})
	finish := sync.OnceFunc(func() { close(stop); flusher.Wait() })
	defer finish()
	keep, err := sem.Acquire(ctx, "kept")
	if err != nil {
		t.Fatal(err)
	}
	var holders tally
	var open atomic.Int64
	repeatedly(2*time.Second, 16, func(worker int) {
		if worker%2 == 0 {
			r := seed.TryAcquire(ctx, "flush")
			if r.FailedOpen() {
				open.Add(1)
			} else if r.Acquired {
				holders.in()
				time.Sleep(200 * time.Microsecond) // what a holder does
				holders.out()
				seed.Release(ctx, "flush", r.SlotID)
			}
			return
		}
		l, err := sem.Acquire(ctx, "flush")
		if err != nil {
			t.Error(err)
			return
		}
		holders.in()
		time.Sleep(200 * time.Microsecond)
		holders.out()
		if err := l.Release(ctx); err != nil {
			t.Error(err)
		}
	})
	finish()
	most, passed := holders.read()
	t.Logf("%d flushes, %d holders passed, at most %d at once", n, passed, most)
	if most > 4 || passed < 10 || n < 5 {
		t.Errorf("%d holders of 4 at once, %d in all, under %d flushes", most, passed, n)
	}
	if said := fmt.Sprint(logs.All()); strings.Contains(said, "NOSCRIPT") || open.Load() > int64(passed/10) {
		t.Errorf("%d failed open, logged: %s", open.Load(), said)
	}
	if s := sem.Stats(); s.Renewals == 0 || s.Lost != 0 {
		t.Errorf("%+v, want renewals, and nothing lost", s)
	}
	if err := context.Cause(keep.Context()); err != nil {
		t.Error(err)
	}
}

// Redis forgets everything: nobody is over-admitted, holders keep what they hold,
// waiters stand in line again, and no script fails on a missing key.
func TestDataLossKeepsTheLimit(t *testing.T) {
	for how, lose := range map[string]func(t *testing.T, srv *redistest.Server){
		"flushall": func(t *testing.T, srv *redistest.Server) { do(t, srv, "FLUSHALL") },
		"restart":  func(_ *testing.T, srv *redistest.Server) { srv.Restart(false) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			ctx := t.Context()
			const limit, waiters = 2, 6
			var sems [3]*gotsem.Semaphore
			for i := range sems {
				sems[i] = fullSem(t, srv.Client(), limit, func(o *gotsem.Options) {
					o.TTL, o.Queue, o.StoreTimeout = 2*time.Second, 20, time.Second
				})
			}
			var holders tally
			var held []*gotsem.Lease
			for i := range limit {
				l, err := sems[i].Acquire(ctx, "forgotten")
				if err != nil {
					t.Fatal(err)
				}
				holders.in()
				held = append(held, l)
			}
			served := make(chan error, waiters)
			for i := range waiters {
				go func() {
					for {
						l, err := sems[i%3].Acquire(ctx, "forgotten")
						if errors.Is(err, gotsem.ErrUnavailable) { // while it restarts: by the policy, at once
							time.Sleep(10 * time.Millisecond) // as a client would
							continue
						}
						if err == nil {
							holders.in()
							holders.out()
							err = l.Release(ctx)
						}
						served <- err
						return
					}
				}()
			}
			soon(t, patience, "all to stand in line", func() bool { return len(waiting(t, srv, "forgotten")) == waiters })
			lose(t, srv)
			soon(t, patience, "the holders to come forward", func() bool { return len(members(t, srv, "forgotten")) == limit })
			soon(t, patience, "the waiters to stand in line again", func() bool { return len(waiting(t, srv, "forgotten")) == waiters })
			for _, l := range held {
				if err := context.Cause(l.Context()); err != nil {
					t.Errorf("a live lease ended: %v", err)
				}
				holders.out()
				if err := l.Release(ctx); err != nil {
					t.Error(err)
				}
			}
			for range waiters {
				if err := received(t, served, patience, "the waiters to be served"); err != nil {
					t.Error(err)
				}
			}
			if most, _ := holders.read(); most > limit {
				t.Errorf("%d held at once, limit %d", most, limit)
			}
			var putBack uint64
			for _, sem := range sems {
				putBack += sem.Stats().Restored
			}
			if putBack != limit {
				t.Errorf("%d leases were put back, want %d", putBack, limit)
			}
		})
	}
}
