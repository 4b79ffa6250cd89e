package faults

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// The load of three classes at one id on a Redis: holds of classesHold, a line of twice the
// limit, and of 13 calls 4 sheddable, 6 ordinary and 3 critical ones, at random moments.
const (
	classesLimit = 10
	classesHold  = 50 * time.Millisecond
)

// ClassesRules are those of the worked example of docs/limits.md, for holds of
// classesHold instead of a second.
var ClassesRules = map[gotsem.Class]gotsem.ClassRule{
	gotsem.Sheddable: {Line: .5},
	gotsem.Batch:     {Line: .75, HeadStart: classesHold},
	gotsem.Default:   {Line: .9, HeadStart: 2 * classesHold},
	gotsem.Critical:  {Line: 1, HeadStart: 4 * classesHold},
}

// ClassLoad is what a class asked for and was refused.
type ClassLoad struct {
	Class          gotsem.Class
	Asked, Refused int
}

// Lost is the share that was refused.
func (c ClassLoad) Lost() float64 { return float64(c.Refused) / float64(max(c.Asked, 1)) }

// Classes runs load times what there is room for, for d.
func Classes(tb redistest.TB, load float64, d time.Duration, rules map[gotsem.Class]gotsem.ClassRule) []ClassLoad {
	st := redisstore.New(redistest.Start(tb).Client(), "classes:")
	tb.Cleanup(func() { _ = st.Close() })
	sem, err := gotsem.New(gotsem.Options{Store: st, Limit: classesLimit, Queue: 2 * classesLimit, Classes: rules, Outage: gotsem.Closed})
	if err != nil {
		tb.Fatalf("faults: %v", err)
	}
	tb.Cleanup(func() { _ = sem.Close() })
	parts := []struct {
		class gotsem.Class
		of13  float64
	}{{gotsem.Sheddable, 4}, {gotsem.Default, 6}, {gotsem.Critical, 3}}
	loads := make([]ClassLoad, len(parts))
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, p := range parts {
		loads[i].Class = p.class
		perSecond := load * p.of13 / 13 * classesLimit / classesHold.Seconds()
		all.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(i)))
			for next := time.Now(); ; { // by the clock, so that a late one does not lessen the load
				next = next.Add(time.Duration(r.ExpFloat64() / perSecond * float64(time.Second)))
				if sleep(ctx, time.Until(next)); ctx.Err() != nil {
					return
				}
				all.Go(func() {
					lease, err := sem.Acquire(context.Background(), "id", gotsem.As(p.class))
					mu.Lock()
					loads[i].Asked++
					if err != nil {
						loads[i].Refused++
					}
					mu.Unlock()
					if err == nil {
						time.Sleep(classesHold)
						_ = lease.Release(context.Background())
					}
				})
			}
		})
	}
	all.Wait()
	return loads
}
