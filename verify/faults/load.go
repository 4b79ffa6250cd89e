package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

// Load is what the goroutines of one process do: acquire, hold, give back, again.
type Load struct {
	IDs       []string
	Levels    []string // further ids of every third call, in this order
	Workers   int
	TryShare  int           // of 100 acquires, so many do not wait in line
	Patience  time.Duration // of those that wait
	HoldLeast time.Duration
	HoldMost  time.Duration
	Pause     time.Duration // between two, at most
}

// Calls are what a load counted beside its leases.
type Calls struct {
	mu      sync.Mutex
	Slowest time.Duration // the longest that a Try took
	Errors  map[string]int
}

func (c *Calls) note(took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Slowest = max(c.Slowest, took)
	if c.Errors == nil {
		c.Errors = make(map[string]int)
	}
	c.Errors[kindOf(err)]++
}

func kindOf(err error) string {
	for _, k := range []struct {
		err  error
		name string
	}{
		{gotsem.ErrWaitTooLong, "waited too long"}, {gotsem.ErrFull, "full"}, {gotsem.ErrQueueFull, "line full"}, {gotsem.ErrRecovering, "recovering"},
		{gotsem.ErrUnavailable, "unavailable"}, {context.DeadlineExceeded, "deadline"}, {context.Canceled, "canceled"},
	} {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	if err == nil {
		return "granted"
	}
	return err.Error()
}

// Run runs the load until ctx is over, and returns when all leases have ended.
func (l Load) Run(ctx context.Context, sem *gotsem.Semaphore, who string, seed uint64, sink Sink, calls *Calls) {
	var all sync.WaitGroup
	for i := range l.Workers {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for ctx.Err() == nil {
				l.once(ctx, sem, who, r, sink, calls)
				sleep(ctx, time.Duration(r.Int64N(int64(l.Pause)+1)))
			}
		})
	}
	all.Wait()
}

func (l Load) once(ctx context.Context, sem *gotsem.Semaphore, who string, r *rand.Rand, sink Sink, calls *Calls) {
	id := l.IDs[r.IntN(len(l.IDs))]
	hold := l.HoldLeast + time.Duration(r.Int64N(int64(l.HoldMost-l.HoldLeast)+1))
	var lease *gotsem.Lease
	var err error
	began := now()
	var opts []gotsem.Option
	if len(l.Levels) > 0 && r.IntN(3) == 0 {
		for _, level := range l.Levels {
			opts = append(opts, gotsem.Also(level))
		}
	}
	if r.IntN(100) < l.TryShare {
		lease, err = sem.Try(ctx, id, opts...)
		if calls != nil {
			calls.note(now()-began, err)
		}
	} else {
		lease, err = sem.Acquire(ctx, id, append(opts, gotsem.MaxWait(l.Patience))...)
		if calls != nil {
			calls.note(0, err)
		}
	}
	if err != nil {
		return
	}
	Hold(ctx, lease, began, who, hold, sink)
}

// Hold holds a lease, that was asked for at asked, for a while, tells sink, and gives it
// back.
func Hold(ctx context.Context, lease *gotsem.Lease, asked time.Duration, who string, hold time.Duration, sink Sink) {
	start := now()
	expires := expiry(lease)
	ids := lease.IDs()
	for i, id := range ids {
		sink.Begin(Span{Who: who, ID: id, Slot: spanSlot(lease, i), Weight: lease.Weight(), Fence: lease.FenceOf(id), Asked: asked, Start: start, Local: expires == 0})
	}
	lost := lease.Context()
	timer := time.NewTimer(hold)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-lost.Done():
	}
	end, ended := now(), lost.Err() != nil
	expires = expiry(lease)
	told := ended && errors.Is(context.Cause(lost), gotsem.ErrLeaseLost) && expires > end
	if expires > 0 {
		end = min(end, expires)
	}
	for i := range ids {
		sink.End(who, spanSlot(lease, i), end, told)
	}
	_ = lease.Release(ctx) // what fails is tried again in the background
}

// spanSlot names the span of a lease at one of its ids, which have the same slot id.
func spanSlot(lease *gotsem.Lease, i int) string {
	if i == 0 {
		return lease.SlotID()
	}
	return fmt.Sprint(lease.SlotID(), " of id ", i)
}

// expiry is Lease.Expires by now; 0: it depends on no store.
func expiry(lease *gotsem.Lease) time.Duration {
	at := lease.Expires()
	if at.IsZero() {
		return 0
	}
	return now() + time.Until(at)
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
