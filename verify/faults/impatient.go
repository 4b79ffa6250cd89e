package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// Who gives up must cost the others nothing: a place in line that stands on after its
// waiter has gone holds up who stands behind it.
const (
	impatientSlots = 5
	impatientHold  = 10 * time.Millisecond
	patientCallers = 10
	impatientOnes  = 20
	impatientMost  = 3 * time.Millisecond // they cancel before that, and come back
)

// ImpatientResult is what patient callers were granted alone, and beside impatient ones.
type ImpatientResult struct {
	Store         string
	Alone, Beside []float64 // grants a second, by round
	Theirs        int       // grants that impatient ones got all the same
	GaveUp        int
}

// Ratio is the median of the rounds' ratios.
func (r ImpatientResult) Ratio() float64 {
	ratios := make([]float64, len(r.Alone))
	for i := range ratios {
		ratios[i] = r.Beside[i] / r.Alone[i]
	}
	return middle(ratios)
}

func (r ImpatientResult) String() string {
	return fmt.Sprintf("%-6s %3.0f grants a second alone, %3.0f beside %d that give up (%d times; %d were granted): %.2f",
		r.Store, middle(r.Alone), middle(r.Beside), impatientOnes, r.GaveUp, r.Theirs, r.Ratio())
}

func middle(of []float64) float64 {
	of = slices.Clone(of)
	slices.Sort(of)
	return of[len(of)/2]
}

// Impatient measures rounds of d, alone and beside in turn, on a Redis or in memory.
func Impatient(tb redistest.TB, onRedis bool, rounds int, d time.Duration) ImpatientResult {
	o := gotsem.Options{Limit: impatientSlots, Queue: 10 * (patientCallers + impatientOnes), Outage: gotsem.Closed, StoreTimeout: 5 * time.Second}
	r := ImpatientResult{Store: "memory"}
	if onRedis {
		r.Store = "redis"
		st := redisstore.New(redistest.Start(tb).Client(), "impatient:")
		tb.Cleanup(func() { _ = st.Close() })
		o.Store = st
	}
	sem, err := gotsem.New(o)
	if err != nil {
		tb.Fatalf("faults: %v", err)
	}
	tb.Cleanup(func() { _ = sem.Close() })
	for round := range 2 * rounds {
		id := fmt.Sprint("round ", round)
		ctx, cancel := context.WithCancel(context.Background())
		var granted, theirs, gaveUp atomic.Int64
		var all sync.WaitGroup
		hold := func(l *gotsem.Lease, n *atomic.Int64) {
			n.Add(1)
			sleep(ctx, impatientHold)
			_ = l.Release(context.Background())
		}
		for range patientCallers {
			all.Go(func() {
				for ctx.Err() == nil {
					if l, err := sem.Acquire(ctx, id); err == nil {
						hold(l, &granted)
					}
				}
			})
		}
		for i := range impatientOnes * (round % 2) {
			all.Go(func() {
				random := rand.New(rand.NewPCG(uint64(round), uint64(i)))
				for ctx.Err() == nil {
					short, stop := context.WithTimeout(ctx, time.Duration(random.Int64N(int64(impatientMost))))
					if l, err := sem.Acquire(short, id); err == nil {
						hold(l, &theirs)
					} else {
						gaveUp.Add(1)
					}
					stop()
				}
			})
		}
		began := time.Now()
		sleep(ctx, d)
		rate := float64(granted.Load()) / time.Since(began).Seconds()
		cancel()
		all.Wait()
		if round%2 == 0 {
			r.Alone = append(r.Alone, rate)
		} else {
			r.Beside = append(r.Beside, rate)
		}
		r.Theirs += int(theirs.Load())
		r.GaveUp += int(gaveUp.Load())
	}
	return r
}
