//go:build unix

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/leaktest"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
)

// idle reports whether nothing is under way in the batcher, and what is.
func (b *batcher) idle() (bool, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting) == 0 && b.arrived.Load() == 0 && b.flying == 0 && b.left == 0 && len(b.running) == 0 && !b.inDoubt.any(),
		fmt.Sprintf("%d queued, %d batches, %d left behind, %d in doubt", b.arrived.Load(), b.flying, b.left, b.inDoubt.n.Load())
}

// Callers leave at any moment: a release never overtakes the acquire that it cleans up
// after, so nothing stays held; and nothing of theirs stays here.
func TestCallersWhoLeave(t *testing.T) {
	for name, connect := range map[string]func(addr string) redis.UniversalClient{
		"client": func(addr string) redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: addr}) },
		"wrapped": func(addr string) redis.UniversalClient {
			return wrapped{redis.NewClient(&redis.Options{Addr: addr})}
		},
	} {
		t.Run(name, func(t *testing.T) {
			check := leaktest.Begin(t)
			srv := redistest.Start(t)
			relay := redistest.NewRelay(t, srv.Addr())
			relay.SetDelay(2 * time.Millisecond)
			rdb := connect(relay.Addr())
			s := New(rdb, "sem:")
			const workers, rounds = 64, 20
			var all sync.WaitGroup
			var left, answered int
			var mu sync.Mutex
			for w := range workers {
				all.Go(func() {
					for i := range rounds {
						slot := fmt.Sprintf("slot-%d-%d", w, i)
						ctx, cancel := context.WithCancel(context.Background())
						timer := time.AfterFunc(rand.N(40*time.Millisecond), cancel)
						_, err := s.Acquire(ctx, &store.Request{ID: fmt.Sprint("id", w%7), SlotID: slot, Weight: 1 + i%2, Limit: 10_000, TTL: time.Hour, Plain: w%2 == 0})
						timer.Stop()
						cancel()
						mu.Lock()
						if err == nil {
							answered++
						} else if errors.Is(err, context.Canceled) {
							left++
						} else {
							t.Error(err)
						}
						mu.Unlock()
						if _, err := s.Release(context.Background(), &store.Release{ID: fmt.Sprint("id", w%7), SlotID: slot, Budget: patience}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			t.Logf("%d were answered, %d left", answered, left)
			if answered == 0 || left == 0 {
				t.Error("that tests nothing")
			}
			for i := range 7 {
				u, err := s.Usage(t.Context(), fmt.Sprint("id", i), 1)
				if err != nil || u.Active != 0 {
					t.Errorf("id%d: %+v, %v, want nothing held", i, u, err)
				}
			}
			soon(t, "the batcher to come to rest", func() bool { ok, _ := s.batcher.idle(); return ok })
			_ = s.Close()
			_ = rdb.Close()
			relay.Refuse(true)
			relay.CutAll()
			srv.Kill()
			check()
		})
	}
}

// Operations on one slot id are carried in the order in which they were called, also
// when nobody waits for them.
func TestOperationsOnASlotKeepTheirOrder(t *testing.T) {
	srv := redistest.Start(t)
	s := opened(t, srv.Client(), "sem:")
	ctx := t.Context()
	done := make(chan error, 64)
	var load sync.WaitGroup
	stop := make(chan struct{})
	for w := range 8 { // so that batches are under way, and operations gather
		load.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				slot := fmt.Sprintf("load-%d-%d", w, i)
				_, _ = s.Acquire(ctx, &store.Request{ID: "load", SlotID: slot, Weight: 1, Limit: 4, TTL: time.Minute})
				_, _ = s.Release(ctx, &store.Release{ID: "load", SlotID: slot})
			}
		})
	}
	for i := range 300 {
		slot := fmt.Sprint("slot", i)
		d, err := s.Acquire(ctx, &store.Request{ID: "order", SlotID: slot, Weight: 1, Limit: 1, TTL: time.Hour})
		if err != nil || d.Outcome != store.Granted {
			t.Fatalf("round %d: %v, %v: the release before it has not come yet", i, d, err)
		}
		if _, err := s.Release(ctx, &store.Release{ID: "order", SlotID: slot, Async: func(_, _ string, err error) { done <- err }}); err != nil {
			t.Fatal(err)
		}
		// The same slot id again, called after the release was.
		d, err = s.Acquire(ctx, &store.Request{ID: "order", SlotID: slot + "again", Weight: 1, Limit: 2, TTL: time.Hour})
		if err != nil || d.Outcome != store.Granted {
			t.Fatalf("round %d: %v, %v", i, d, err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if _, err := s.Release(ctx, &store.Release{ID: "order", SlotID: slot + "again"}); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	load.Wait()
}

// A Redis that hangs holds up nobody beyond his budget, and holds on to nothing.
func TestBudgetOnAHangingRedis(t *testing.T) {
	for name, connect := range map[string]func(addr string) redis.UniversalClient{
		"client": func(addr string) redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: addr}) },
		"own deadlines": func(addr string) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		},
		"wrapped": func(addr string) redis.UniversalClient {
			return wrapped{redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Second})}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hole := redistest.Blackhole(t)
			rdb := connect(hole.Addr())
			t.Cleanup(func() { _ = rdb.Close() })
			s := opened(t, rdb, "sem:")
			const budget = 100 * time.Millisecond
			var all sync.WaitGroup
			for i := range 300 {
				all.Go(func() {
					began := time.Now()
					var err error
					switch i % 3 {
					case 0:
						_, err = s.Acquire(context.Background(), &store.Request{ID: "x", SlotID: fmt.Sprint(i), Weight: 1, Limit: 1, TTL: time.Minute, Budget: budget})
					case 1:
						_, err = s.Release(context.Background(), &store.Release{ID: "x", SlotID: fmt.Sprint(i), Budget: budget})
					case 2:
						ctx, cancel := context.WithTimeout(context.Background(), budget)
						defer cancel()
						err = s.Renew(ctx, []store.Renewal{{ID: "x", SlotID: fmt.Sprint(i), TTL: time.Minute, Weight: 1}})[0].Err
					}
					if err == nil || errors.Is(err, store.ErrConfig) {
						t.Errorf("%d: %v, want an outage", i, err)
					}
					if took := time.Since(began); took > 2*budget+time.Second {
						t.Errorf("%d took %v, budget %v", i, took, budget)
					}
				})
			}
			all.Wait()
			soon(t, "the batcher to come to rest", func() bool { ok, _ := s.batcher.idle(); return ok })
		})
	}
}

// A process whose processors are busy, as one that renews 10,000 leases beside a busy
// loop, waited ten milliseconds and more for company before each batch, and lost its leases.
func TestTripsWaitedForBusyProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var stop atomic.Bool
	var turns atomic.Int64
	var busy sync.WaitGroup
	busy.Go(func() {
		for !stop.Load() {
			turns.Add(1)
		}
	})
	defer busy.Wait()
	defer stop.Store(true)
	var p batcher
	p.gather()
	if p.hurried.Load() == 0 {
		t.Fatal("it did not notice that letting others run took long")
	}
	before := turns.Load()
	p.gather()
	if n := turns.Load() - before; n != 0 {
		t.Errorf("it let the others run again: %d turns", n)
	}
}

// What waits together is due together: whoever comes later, since Redis hangs, has the
// whole of its budget, and nobody waits for the budget of another.
func TestWhatGoesTogetherIsDueTogether(t *testing.T) {
	s := opened(t, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), "sem:")
	p := s.batcher
	p.flying = maxInFlightFar // so that all wait
	defer func() { p.flying = 0 }()
	const budget = 300 * time.Millisecond
	var all sync.WaitGroup
	var batches []*batch
	began := time.Now()
	for i := range 40 {
		all.Go(func() {
			began := time.Now()
			_, err := s.Acquire(t.Context(), &store.Request{ID: "id", SlotID: fmt.Sprint(i), Weight: 1, Limit: 1, TTL: time.Minute, Budget: budget})
			if took := time.Since(began); !isTimeout(err) || took < budget || took > budget+dueSpread+time.Second {
				t.Errorf("%v after %v, want that its budget of %v is over", err, took, budget)
			}
		})
		soon(t, "the next to wait", func() bool { return int(p.arrived.Load()) == i+1 || time.Since(began) > budget/2 })
		if i%10 == 9 {
			pause(t.Context(), 2*dueSpread)
		}
		p.mu.Lock()
		batches = append(batches[:0], p.waiting...)
		for _, w := range batches {
			for _, o := range w.ops {
				if late := w.due.Sub(o.due); late < 0 || late > dueSpread {
					t.Errorf("a batch is due %v after one that rides in it", late)
				}
			}
		}
		p.mu.Unlock()
	}
	if len(batches) < 2 {
		t.Errorf("all of them wait in %d batches: that tests nothing", len(batches))
	}
	all.Wait()
}

// One slot id can be asked for twice, and both callers leave: it is in doubt until both
// batches have ended, and no longer.
func TestInDoubtUntilTheLastHasEnded(t *testing.T) {
	s := opened(t, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), "sem:")
	p := s.batcher
	give := s.op(release, "id", "slot", time.Minute)
	var batches []*batch
	for range 2 {
		o := s.op(acquire, "id", "slot", time.Minute)
		o.stage = sent
		if !p.abandon(o, nil) {
			t.Fatal("it was answered")
		}
		batches = append(batches, &batch{ops: []*op{o}})
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, one := range batches {
		if err := s.inDoubt.wait(over, give); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that the release waits", err)
		}
		p.markDone(one)
	}
	if err := s.inDoubt.wait(over, give); err != nil || s.inDoubt.any() {
		t.Errorf("%v, and %d are in doubt: want none", err, s.inDoubt.n.Load())
	}
	// One that never left is not in doubt.
	o := s.op(acquire, "id", "slot", time.Minute)
	if p.abandon(o, nil); s.inDoubt.any() {
		t.Error("in doubt, though it was never sent")
	}
}

// On a client whose calls do not end with their ctx, a batch whose callers are all in a hurry is left
// behind when their time is over. That is no word of Redis, and ends nobody else's wait.
func TestAShortCtxEndsNobodyElsesWait(t *testing.T) {
	srv := redistest.Start(t)
	relay := redistest.NewRelay(t, srv.Addr())
	rdb := wrapped{redis.NewClient(&redis.Options{Addr: relay.Addr()})}
	t.Cleanup(func() { _ = rdb.Close() })
	s := opened(t, rdb, "sem:")
	if _, err := s.Usage(t.Context(), "id", 1); err != nil { // connects
		t.Fatal(err)
	}
	relay.SetDelay(10 * time.Millisecond)
	var all sync.WaitGroup
	ask := func(ctx context.Context, slot string) error {
		_, err := s.Acquire(ctx, &store.Request{ID: "id", SlotID: slot, Weight: 1, Limit: 1000, TTL: time.Minute, Plain: true, Budget: patience})
		return err
	}
	for i := range maxInFlight { // each a batch of its own
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Millisecond)
			defer cancel()
			if err := ask(ctx, fmt.Sprint("short", i)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want that its time is over", err)
			}
		})
		soon(t, "its batch", func() bool {
			s.batcher.mu.Lock()
			defer s.batcher.mu.Unlock()
			return s.batcher.flying > i || s.batcher.left > 0
		})
	}
	for i := range 5 {
		all.Go(func() {
			if err := ask(t.Context(), fmt.Sprint("long", i)); err != nil {
				t.Errorf("with all the time there is: %v", err)
			}
		})
	}
	all.Wait()
}
