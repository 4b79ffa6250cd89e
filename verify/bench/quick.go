package main

import (
	"fmt"
	"hash/maphash"
	"math"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// What takes nanoseconds: refusals that are known, and the memory store.

// cost is what one turn of a loop takes.
type cost struct{ ns, allocs float64 }

// timed calls loop on so many goroutines at once. ns are of wall time, divided by all
// turns.
func timed(goroutines, turns int, loop func(worker, turns int)) cost {
	var m0, m1 runtime.MemStats
	runtime.ReadMemStats(&m0)
	began := time.Now()
	var all sync.WaitGroup
	for w := 1; w < goroutines; w++ {
		all.Go(func() { loop(w, turns) })
	}
	loop(0, turns)
	all.Wait()
	took := time.Since(began)
	runtime.ReadMemStats(&m1)
	n := float64(turns * goroutines)
	return cost{float64(took.Nanoseconds()) / n, float64(m1.Mallocs-m0.Mallocs) / n}
}

// turnsFor finds how many turns take about span: by the quickest of several tries,
// since any of them may be held up.
func turnsFor(goroutines int, span time.Duration, loop func(worker, turns int)) int {
	best := math.Inf(1)
	for turns := 64; ; turns *= 2 {
		ns := timed(goroutines, turns, loop).ns
		best = min(best, ns)
		if took := ns * float64(turns*goroutines); took >= float64(span)/4 && turns >= 4096 || turns > 1<<28 {
			return max(int(float64(span)/best)/goroutines, 1)
		}
	}
}

// inTurn times several loops in turn, round by round.
func inTurn(l *lab, goroutines int, loops map[string]func(worker, turns int), names ...string) map[string][]cost {
	out, turns := make(map[string][]cost), make(map[string]int)
	for _, name := range names {
		turns[name] = turnsFor(goroutines, l.span/4, loops[name])
	}
	for range l.rounds {
		for _, name := range names {
			out[name] = append(out[name], timed(goroutines, turns[name], loops[name]))
		}
	}
	return out
}

func ns(cs []cost) spread       { return spreadOf(each(cs, func(c cost) float64 { return c.ns })) }
func allocsOf(cs []cost) spread { return spreadOf(each(cs, func(c cost) float64 { return c.allocs })) }

func each[T any](in []T, f func(T) float64) []float64 {
	out := make([]float64, len(in))
	for i, x := range in {
		out[i] = f(x)
	}
	return out
}

func knownTable(l *lab) (*report, error) {
	rdb := redis.NewClient(&redis.Options{Addr: l.srv.Addr()})
	defer rdb.Close()
	l.prefixes++
	prefix := fmt.Sprintf("known%d:", l.prefixes)
	sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(rdb, prefix), Limit: 1, KnownFull: time.Hour, TTL: time.Hour})
	if err != nil {
		return nil, err
	}
	defer sem.Close()
	if _, err := sem.Try(background, "id"); err != nil {
		return nil, err
	}
	refuse := func(_, turns int) {
		for range turns {
			if _, err := sem.Try(background, "id"); err == nil {
				panic("granted above the limit")
			}
		}
	}
	plainRefuse := func(_, turns int) {
		for range turns {
			if sem.TryAcquire(background, "id").Acquired {
				panic("granted above the limit")
			}
		}
	}
	names := []string{"Try", "TryAcquire"}
	one := inTurn(l, 1, map[string]func(int, int){"Try": refuse, "TryAcquire": plainRefuse}, names...)
	both := inTurn(l, 256, map[string]func(int, int){"Try": refuse, "TryAcquire": plainRefuse}, names...)

	// The same without KnownFull, and the baseline's: an id that is full for good.
	full := func(r contender) contender {
		return contender{r.name, func(e entry) (*runner, error) {
			e.limit = 0
			run, err := r.enter(e)
			return run, err
		}}
	}
	c, err := l.contest(workload{name: "refused", workers: 256, ids: 1, limit: 0}, full(ours), full(theBaseline))
	if err != nil {
		return nil, err
	}
	r := &report{head: []string{"refusals", "ns alone", "allocations", "refusals/s at 256 goroutines", "× baseline"}}
	baselineRate := c.of(nameBaseline, attempts).med
	for _, name := range names {
		rate := spreadOf(each(both[name], func(c cost) float64 { return 1e9 / c.ns }))
		r.add("known full, "+name, ns(one[name]).String(), number(allocsOf(one[name]).med), rate.String(), number(rate.med/baselineRate)+"×")
		if name == "Try" {
			r.atMost(150, ns(one[name]).med, "ns a refusal")
			r.atMost(0.001, allocsOf(one[name]).med, "allocations a refusal")
			r.atLeast(100, rate.med/baselineRate, "refusals/s, of the baseline's")
		}
	}
	for _, name := range contendersOf(c) {
		r.add(name+", asked", "", number(c.of(name, allocs).med), c.of(name, attempts).String(), c.against(name, nameBaseline, attempts))
	}
	r.bound = "known: a map under a read lock, and reading the clock. Asked: as with the full id above."
	return r, nil
}

// overloadTable offers five times what the slots can serve, by the clock and not by
// who is free, and counts what is served with KnownFull and without.
func overloadTable(l *lab) (*report, error) {
	const (
		limit = 10
		hold  = 5 * time.Millisecond
		times = 5
	)
	offered := times * limit * int(time.Second/hold) // a second
	type kind struct {
		name  string
		known time.Duration
		sems  int
	}
	kinds := []kind{
		{"one process, asked", 0, 1}, {"one process, KnownFull 1 ms", time.Millisecond, 1}, {"one process, KnownFull 10 ms", 10 * time.Millisecond, 1},
		{"two processes, asked", 0, 2}, {"two processes, KnownFull 1 ms", time.Millisecond, 2}, {"two processes, KnownFull 10 ms", 10 * time.Millisecond, 2},
	}
	served, unasked := make(map[string][]float64), make(map[string][]float64)
	for range l.rounds {
		for _, k := range kinds {
			l.prefixes++
			prefix := fmt.Sprintf("over%d:", l.prefixes)
			var sems []*gotsem.Semaphore
			var closers []func()
			for range k.sems {
				rdb := redis.NewClient(&redis.Options{Addr: l.srv.Addr()})
				sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(rdb, prefix), Limit: limit, KnownFull: k.known, TTL: ttl})
				if err != nil {
					return nil, err
				}
				sems = append(sems, sem)
				closers = append(closers, func() { _ = sem.Close(); _ = rdb.Close() })
			}
			var grants, arrivals atomic.Int64
			var under sync.WaitGroup
			began := time.Now()
			for sent := 0; ; {
				passed := time.Since(began)
				if passed >= l.span {
					break
				}
				for due := int(passed.Seconds() * float64(offered)); sent < due; sent++ {
					sem := sems[sent%len(sems)]
					under.Go(func() {
						arrivals.Add(1)
						lease, err := sem.Try(background, "id")
						if err != nil {
							return
						}
						grants.Add(1)
						time.Sleep(hold) // the work
						_ = lease.Release(background)
					})
				}
				time.Sleep(200 * time.Microsecond)
			}
			took := time.Since(began)
			under.Wait()
			var knew uint64
			for i, sem := range sems {
				knew += sem.Stats().KnownFull
				closers[i]()
			}
			served[k.name] = append(served[k.name], float64(grants.Load())/took.Seconds())
			unasked[k.name] = append(unasked[k.name], 100*float64(knew)/float64(max(arrivals.Load(), 1)))
		}
	}
	r := &report{head: []string{fmt.Sprintf("limit %d, hold %v, %s tries/s offered", limit, hold, number(float64(offered))), "grants/s", "of those asked", "refused unasked"}}
	for _, k := range kinds {
		asked := spreadOf(served[pick(k.sems == 1, kinds[0].name, kinds[3].name)]).med
		got := spreadOf(served[k.name])
		r.add(k.name, got.String(), fmt.Sprintf("%.0f %%", 100*got.med/asked), fmt.Sprintf("%.0f %%", spreadOf(unasked[k.name]).med))
		if k.known == time.Millisecond {
			r.atLeast(0.95, got.med/asked, "grants, of those without: "+k.name)
		}
	}
	r.bound = fmt.Sprintf("the slots: at most %s grants/s, less by what it takes to hear of a free one. A process's own releases end what it knows; another process's do not, but for KnownFull's length.", number(limit/hold.Seconds()))
	return r, nil
}

// shardedMap is the least that counts slots by id and slot id: it knows no time, no
// line, no fence and no context.
type shardedMap struct {
	seed   maphash.Seed
	shards [64]mapShard
}

type mapShard struct {
	mu  sync.Mutex
	ids map[string]map[string]struct{}
	_   [48]byte
}

func newShardedMap() *shardedMap {
	m := &shardedMap{seed: maphash.MakeSeed()}
	for i := range m.shards {
		m.shards[i].ids = make(map[string]map[string]struct{})
	}
	return m
}

func (m *shardedMap) shard(id string) *mapShard { return &m.shards[maphash.String(m.seed, id)%64] }

func (m *shardedMap) try(id, slotID string, limit int) bool {
	sh := m.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	held := sh.ids[id]
	if held == nil {
		held = make(map[string]struct{})
		sh.ids[id] = held
	}
	if len(held) >= limit {
		return false
	}
	held[slotID] = struct{}{}
	return true
}

func (m *shardedMap) release(id, slotID string) {
	sh := m.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	held := sh.ids[id]
	if delete(held, slotID); len(held) == 0 {
		delete(sh.ids, id)
	}
}

func memstoreTable(l *lab) (*report, error) {
	const nIDs, limit = 10_000, 1 << 20
	names := ids(nIDs)
	sem, err := gotsem.New(gotsem.Options{Limit: limit})
	if err != nil {
		return nil, err
	}
	defer sem.Close()
	m := newShardedMap()
	x := make([]*semaphore.Weighted, nIDs)
	for i := range x {
		x[i] = semaphore.NewWeighted(limit)
	}
	var slots atomic.Uint64
	// spot has each worker walk over the ids from a place of its own, or stay on one.
	spot := func(many bool, w, i int) int {
		if !many {
			return 0
		}
		return (w*2503 + i) % nIDs
	}
	loops := func(many bool) map[string]func(int, int) {
		return map[string]func(int, int){
			"gotsem, Try + lease.Release": func(w, turns int) {
				for i := range turns {
					lease, err := sem.Try(background, names[spot(many, w, i)])
					if err != nil {
						panic(err)
					}
					_ = lease.Release(background)
				}
			},
			"gotsem, TryAcquire + Release": func(w, turns int) {
				for i := range turns {
					id := names[spot(many, w, i)]
					r := sem.TryAcquire(background, id)
					if !r.Acquired {
						panic("refused below the limit")
					}
					sem.Release(background, id, r.SlotID)
				}
			},
			"sharded mutex + map, with a slot id": func(w, turns int) {
				for i := range turns {
					id, slotID := names[spot(many, w, i)], "f2Vz8fIhlSMu3Q4J"+strconv.FormatUint(slots.Add(1), 36)
					if !m.try(id, slotID, limit) {
						panic("refused below the limit")
					}
					m.release(id, slotID)
				}
			},
			"x/sync/semaphore, one made beforehand per id": func(w, turns int) {
				for i := range turns {
					s := x[spot(many, w, i)]
					if !s.TryAcquire(1) {
						panic("refused below the limit")
					}
					s.Release(1)
				}
			},
		}
	}
	order := []string{"gotsem, Try + lease.Release", "gotsem, TryAcquire + Release", "sharded mutex + map, with a slot id", "x/sync/semaphore, one made beforehand per id"}
	cores := runtime.GOMAXPROCS(0)
	one, many := inTurn(l, 1, loops(false), order...), inTurn(l, 1, loops(true), order...)
	parallel := inTurn(l, cores, loops(true), order...)
	r := &report{head: []string{"try + release", "one id, ns", "10,000 ids, ns", "allocations", fmt.Sprintf("10,000 ids on %d cores, ns", cores), "faster by"}}
	for _, name := range order {
		scale := ns(many[name]).med / ns(parallel[name]).med
		r.add(name, ns(one[name]).String(), ns(many[name]).String(), number(allocsOf(one[name]).med), ns(parallel[name]).String(), number(scale)+"×")
	}
	r.atMost(2, ns(one[order[0]]).med/ns(one[order[2]]).med, "lease: of the sharded map's ns, one id")
	r.atMost(2, ns(many[order[0]]).med/ns(many[order[2]]).med, "lease: of the sharded map's ns, 10,000 ids")
	r.atMost(2, ns(one[order[1]]).med/ns(one[order[2]]).med, "plain slot: of the sharded map's ns, one id")
	r.atMost(1, math.Floor(allocsOf(one[order[0]]).med), "lease: allocations, in whole numbers as go test counts (slot ids come 64 at a time)")
	r.atLeast(1+0.3*float64(cores-1), ns(many[order[0]]).med/ns(parallel[order[0]]).med, fmt.Sprintf("lease: faster on %d cores", cores))
	r.bound = "memory: two locks, two map operations, the clock twice, and the lease. x/sync knows no ids, no slot ids and no time: it is a counter under a mutex, the least there can be."
	return r, nil
}
