package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// The loads of several limits, with holds of levelsHold in the mean:
//
//   - nested: key 2 < tenant 5 < all 40. A greedy tenant with 200 clients, 20 others with 5.
//   - crossing: 12 clients of a tenant of 4, 12 of a model of 4, and 2 that want both.
const (
	levelsHold   = 100 * time.Millisecond
	levelsAll    = 40
	levelsOthers = 20
)

// LevelsResult is what the two loads were granted.
type LevelsResult struct {
	Store        string
	Ideal        float64 // of the nested load, what there is room for
	Total        int
	Greedy       int     // of that, the greedy tenant's
	Mean         float64 // another tenant's
	Least        int     // the least of theirs
	Both, Others int     // of the crossing load: who wanted both, and who one
	Over         int     // the most above a limit

	Tenants []int // of the nested load: the greedy tenant's grants, then the others'
}

func (r LevelsResult) String() string {
	return fmt.Sprintf("%-6s nested: %d grants, %.2f of the ideal; greedy %d, others %.0f in the mean, %d at least; crossing: both %d, one %d; %d above a limit",
		r.Store, r.Total, float64(r.Total)/r.Ideal, r.Greedy, r.Mean, r.Least, r.Both, r.Others, r.Over)
}

// Bad says what is not as docs/limits.md says. inOrder is what those who want both get on
// the memory store, where nothing but the order counts.
func (r LevelsResult) Bad(inOrder int) (wrong []string) {
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(r.Store+": "+format, args...)) }
	if got := float64(r.Total) / r.Ideal; got < .9 {
		bad("%.2f of the grants that there is room for, want 0.9", got)
	}
	if g := float64(r.Greedy); g < r.Mean*2/3 || g > r.Mean*4/3 {
		bad("the greedy tenant got %d, others %.0f: want within a third", r.Greedy, r.Mean)
	}
	if float64(r.Least) < .6*r.Mean {
		bad("a tenant got %d of a mean of %.0f, want 0.6", r.Least, r.Mean)
	}
	if r.Both == 0 || r.Both < inOrder/2 {
		bad("who wants both got %d, want half of %d at least", r.Both, inOrder)
	}
	if r.Over > 0 {
		bad("%d above a limit", r.Over)
	}
	return wrong
}

// Levels runs both loads for d each, from two semaphores, on a Redis or in memory.
func Levels(tb redistest.TB, onRedis bool, d time.Duration) LevelsResult {
	l, r := newLevelsLoad(tb, onRedis)
	r.Ideal = levelsAll * float64(d) / float64(levelsHold)
	l.nested(d, false)
	r.tenants(l.granted)
	l.granted = make(map[string]int)
	l.run(d, func(client func(who string, ids ...string)) {
		for range 12 {
			client("one", "t:1")
			client("one", "m:1")
		}
		client("both", "t:1", "m:1")
		client("both", "t:1", "m:1")
	})
	r.Both, r.Others, r.Over = l.granted["both"], l.granted["one"], l.over
	return r
}

// WideFirst runs the nested load with the ids listed the other way round, as they should
// not be.
func WideFirst(tb redistest.TB, onRedis bool, d time.Duration) LevelsResult {
	l, r := newLevelsLoad(tb, onRedis)
	r.Ideal = levelsAll * float64(d) / float64(levelsHold)
	l.nested(d, true)
	r.tenants(l.granted)
	r.Over = l.over
	return r
}

func newLevelsLoad(tb redistest.TB, onRedis bool) (*levelsLoad, LevelsResult) {
	limits := map[string]int{"key": 2, "tenant": 5, "all": levelsAll, "t": 4, "m": 4}
	o := gotsem.Options{Queue: 300, Outage: gotsem.Closed, StoreTimeout: 5 * time.Second,
		LimitFunc: func(_ context.Context, id string) (int, error) {
			kind, _, _ := strings.Cut(id, ":")
			return limits[kind], nil
		}}
	r := LevelsResult{Store: "memory"}
	var sems [2]*gotsem.Semaphore
	srv := (*redistest.Server)(nil)
	if onRedis {
		r.Store, srv = "redis", redistest.Start(tb)
	}
	for i := range sems {
		if onRedis {
			st := redisstore.New(srv.Client(), "levels:")
			tb.Cleanup(func() { _ = st.Close() })
			o.Store = st
		}
		if i > 0 && !onRedis {
			sems[i] = sems[0]
			continue
		}
		sem, err := gotsem.New(o)
		if err != nil {
			tb.Fatalf("faults: %v", err)
		}
		tb.Cleanup(func() { _ = sem.Close() })
		sems[i] = sem
	}
	return &levelsLoad{sems: sems, limits: limits, held: make(map[string]int), granted: make(map[string]int)}, r
}

// nested runs the nested load for d.
func (l *levelsLoad) nested(d time.Duration, wideFirst bool) {
	l.run(d, func(client func(who string, ids ...string)) {
		ordered := func(who string, ids ...string) {
			if wideFirst {
				slices.Reverse(ids)
			}
			client(who, ids...)
		}
		for n := range 200 {
			ordered("greedy", fmt.Sprint("key:g", n/2), "tenant:g", "all")
		}
		for tenant := range levelsOthers {
			for n := range 5 {
				ordered(tenantName(tenant), fmt.Sprint("key:", tenant, ".", n/2), fmt.Sprint("tenant:", tenant), "all")
			}
		}
	})
}

func tenantName(n int) string { return fmt.Sprint("tenant ", n) }

// tenants notes what each tenant was granted.
func (r *LevelsResult) tenants(granted map[string]int) {
	r.Greedy = granted["greedy"]
	r.Total, r.Tenants = r.Greedy, []int{r.Greedy}
	for tenant := range levelsOthers {
		r.Tenants = append(r.Tenants, granted[tenantName(tenant)])
	}
	r.Least = slices.Min(r.Tenants[1:])
	for _, n := range r.Tenants[1:] {
		r.Total += n
		r.Mean += float64(n) / levelsOthers
	}
}

// levelsLoad counts outside of the store.
type levelsLoad struct {
	sems   [2]*gotsem.Semaphore
	limits map[string]int

	mu            sync.Mutex
	held, granted map[string]int
	over          int
}

func (l *levelsLoad) run(d time.Duration, clients func(client func(who string, ids ...string))) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var all sync.WaitGroup
	n := 0
	clients(func(who string, ids ...string) {
		sem, random := l.sems[n%2], rand.New(rand.NewPCG(14, uint64(n)))
		n++
		all.Go(func() {
			opts := make([]gotsem.Option, 0, len(ids))
			for _, id := range ids[1:] {
				opts = append(opts, gotsem.Also(id))
			}
			for ctx.Err() == nil {
				lease, err := sem.Acquire(ctx, ids[0], opts...)
				if err != nil {
					continue
				}
				l.count(who, ids, 1)
				sleep(ctx, time.Duration(random.ExpFloat64()*float64(levelsHold)))
				l.count("", ids, -1)
				_ = lease.Release(context.Background())
			}
		})
	})
	all.Wait()
}

// count counts a grant to who, or its end, at its ids.
func (l *levelsLoad) count(who string, ids []string, by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if by > 0 {
		l.granted[who]++
	}
	for _, id := range ids {
		kind, _, _ := strings.Cut(id, ":")
		l.held[id] += by
		l.over = max(l.over, l.held[id]-l.limits[kind])
	}
}
