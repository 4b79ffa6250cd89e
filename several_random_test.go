package gotsem

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// levelsWorld is a load of random calls for some of six ids, in one order, with random
// weights, classes and ends.
type levelsWorld struct {
	t      *testing.T
	sem    *Semaphore
	ids    []string
	limits map[string]int

	mu      sync.Mutex
	held    map[string]int // counted outside
	revoked bool           // an operator takes leases away: then the count outside lags
	got     map[string]int
}

// Whatever calls for several ids do, the limits hold at each, everybody gets on, and
// nothing stays.
func TestRandomCallsForSeveralIDsKeepTheLimits(t *testing.T) {
	for seed := range uint64(6) {
		for _, revoked := range []bool{false, true} {
			bothWays(t, func(t *testing.T) {
				w := &levelsWorld{t: t, revoked: revoked, limits: make(map[string]int), held: make(map[string]int), got: make(map[string]int)}
				r := rand.New(rand.NewPCG(seed, 14))
				for i := range 6 {
					id := fmt.Sprint("id", i)
					w.ids = append(w.ids, id)
					w.limits[id] = 1 + r.IntN(3) + 2*i
				}
				w.sem = open(t, Options{LimitFunc: byID(w.limits), Queue: 30, TTL: 5 * time.Second})
				w.run(seed, time.Minute)
			})
		}
	}
}

func (w *levelsWorld) run(seed uint64, span time.Duration) {
	ctx, cancel := context.WithTimeout(w.t.Context(), span)
	defer cancel()
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for ctx.Err() == nil {
				w.once(ctx, r)
			}
		})
	}
	if w.revoked {
		all.Go(func() { w.operate(ctx, rand.New(rand.NewPCG(seed, 99))) })
	}
	all.Wait()
	synctest.Wait()
	time.Sleep(4 * time.Second) // what is left to the background
	for _, id := range w.ids {
		stands(w.t, w.sem, id, 0, 0)
		if w.got[id] == 0 {
			w.t.Errorf("%s: nobody got in", id)
		}
	}
	if n := w.sem.Stats().Held; n != 0 {
		w.t.Errorf("%d held", n)
	}
}

// once is one call of random ids, in their order.
func (w *levelsWorld) once(ctx context.Context, r *rand.Rand) {
	weights := make(map[string]int)
	var first string
	var opts []Option
	for _, id := range w.ids {
		if r.IntN(2) == 0 {
			continue
		}
		weights[id] = 1 + r.IntN(min(2, w.limits[id]))
		if first == "" {
			first = id
			opts = append(opts, Weight(weights[id]))
		} else {
			opts = append(opts, Also(id, Weight(weights[id])))
		}
	}
	if first == "" {
		time.Sleep(time.Millisecond)
		return
	}
	opts = append(opts, As(Class(r.IntN(4)-2)))
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	var l *Lease
	var err error
	switch r.IntN(4) {
	case 0:
		l, err = w.sem.Try(call, first, opts...)
	case 1:
		opts = append(opts, MaxWait(time.Duration(r.IntN(3000))*time.Millisecond))
		l, err = w.sem.Acquire(call, first, opts...)
	case 2:
		stop := time.AfterFunc(time.Duration(r.IntN(2000))*time.Millisecond, cancel)
		l, err = w.sem.Acquire(call, first, opts...)
		stop.Stop()
	default:
		l, err = w.sem.Acquire(call, first, opts...)
	}
	if err != nil {
		if !errors.Is(err, ErrFull) && !errors.Is(err, ErrQueueFull) && !errors.Is(err, ErrTooHeavy) && call.Err() == nil {
			w.t.Errorf("%v", err)
		}
		time.Sleep(time.Duration(1+r.IntN(50)) * time.Millisecond)
		return
	}
	if got := len(l.IDs()); got != len(weights) {
		w.t.Errorf("%d ids, want %d", got, len(weights))
	}
	w.count(weights, 1)
	select {
	case <-time.After(time.Duration(r.IntN(400)) * time.Millisecond):
	case <-l.Context().Done():
		if !w.revoked {
			w.t.Errorf("lost: %v", context.Cause(l.Context()))
		}
	}
	w.count(weights, -1)
	mustRelease(w.t, l)
}

func (w *levelsWorld) count(weights map[string]int, by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, n := range weights {
		w.held[id] += by * n
		w.got[id] += max(by, 0)
		if !w.revoked && w.held[id] > w.limits[id] {
			w.t.Errorf("%s: %d held of %d", id, w.held[id], w.limits[id])
		}
	}
}

// operate revokes and clears, and looks whether the store holds more than it may.
func (w *levelsWorld) operate(ctx context.Context, r *rand.Rand) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(50+r.IntN(300)) * time.Millisecond)
		id := w.ids[r.IntN(len(w.ids))]
		if u, err := w.sem.Usage(context.Background(), id); err != nil || u.Active > w.limits[id] {
			w.t.Errorf("%s: %+v, %v", id, u, err)
		}
		if r.IntN(10) == 0 {
			_, _ = w.sem.Clear(context.Background(), id)
			continue
		}
		if hs, err := w.sem.Holders(context.Background(), id); err == nil && len(hs) > 0 {
			_, _ = w.sem.Revoke(context.Background(), id, hs[r.IntN(len(hs))].SlotID)
		}
	}
}
