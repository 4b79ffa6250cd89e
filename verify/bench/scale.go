package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// What an acquire costs as things grow, as far as it can be run on one machine.

var costHead = []string{"server CPU, µs a pair", "script calls a pair", "commands a pair", "bytes in + out a pair", "pairs/s here", "pairs/s that a whole core carries"}

func (c *contest) costs(name string) []string {
	return []string{c.of(name, cpu).String(), number(c.of(name, calls).med), number(c.of(name, commands).med),
		number(c.of(name, bytesIn).med) + " + " + number(c.of(name, bytesOut).med), number(c.of(name, attempts).med), number(1e6 / c.of(name, cpu).med)}
}

func (l *lab) decades(to int) (out []int) {
	if l.quick {
		to = min(to, 1_000)
	}
	for n := 10; n <= to; n *= 10 {
		out = append(out, n)
	}
	return out
}

func scaleIDsTable(l *lab) (*report, error) {
	r := &report{head: append([]string{"ids"}, costHead...), bound: "256 goroutines of one process choose ids at random: the fewer meet on an id, the less a batch saves. From a thousand ids on, nearly every operation is alone on its id, and the cost stays."}
	for _, n := range l.decades(100_000) {
		c, err := l.contest(workload{name: fmt.Sprint("scale-ids", n), workers: 256, ids: n, limit: never, rounds: min(l.rounds, 3)}, ours)
		if err != nil {
			return nil, err
		}
		r.add(append([]string{number(float64(n))}, c.costs(nameOurs)...)...)
	}
	return r, nil
}

func scaleHoldersTable(l *lab) (*report, error) {
	r := &report{head: append([]string{"slots held of the id"}, costHead...), bound: "the set is a packed list to 128 members and a skip list above; counting and adding grow with its logarithm."}
	for _, n := range l.decades(100_000) {
		held := contender{nameOurs, func(e entry) (*runner, error) {
			rdb := e.client()
			defer rdb.Close()
			// As many slots as if somebody held them: what TryAcquire leaves in Redis.
			for from := 0; from < n; from += 1_000 {
				var zs []redis.Z
				for i := from; i < min(n, from+1_000); i++ {
					zs = append(zs, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "f2Vz8fIhlSMu3Q4J" + strconv.FormatInt(int64(i), 36)})
				}
				if err := rdb.ZAdd(background, e.prefix+e.ids[0], zs...).Err(); err != nil {
					return nil, err
				}
			}
			if err := rdb.PExpire(background, e.prefix+e.ids[0], time.Hour).Err(); err != nil {
				return nil, err
			}
			return ours.enter(e)
		}}
		c, err := l.contest(workload{name: fmt.Sprint("scale-holders", n), workers: 256, ids: 1, limit: never, rounds: min(l.rounds, 3)}, held)
		if err != nil {
			return nil, err
		}
		r.add(append([]string{number(float64(n))}, c.costs(nameOurs)...)...)
	}
	return r, nil
}

// scaleWaitersTable has many stand in line of one id, and hands its only slot on, one
// at a time. The waiters' life in line is three seconds, which bounds how many can be
// measured without as many processes to keep them there.
func scaleWaitersTable(l *lab) (*report, error) {
	r := &report{head: []string{"waiting for the id", "joining, server µs", "a hand-off, server µs", "asking again, server µs", "of a core, while nothing happens"}}
	for _, n := range l.decades(10_000) {
		rdb := redis.NewClient(&redis.Options{Addr: l.srv.Addr()})
		l.prefixes++
		st := redisstore.New(rdb, fmt.Sprintf("line%d:", l.prefixes))
		slot := func(i int) string { return "f2Vz8fIhlSMu3Q4J" + strconv.Itoa(i) }
		ask := func(i int) store.Outcome {
			d, err := st.Acquire(background, &store.Request{ID: "id", SlotID: slot(i), Weight: 1, Limit: 1, TTL: ttl, Queue: 1 << 20, Budget: time.Second})
			if err != nil {
				return store.Recovering
			}
			return d.Outcome
		}
		measured, err := func() (out [3]float64, err error) {
			if got := ask(0); got != store.Granted {
				return out, fmt.Errorf("the first to ask was answered %v", got)
			}
			s0 := look(l.srv)
			next := make(chan int, n)
			for i := 1; i <= n; i++ {
				next <- i
			}
			joined := func() bool { return ask(<-next) == store.Waiting }
			if err := fill(n, joined); err != nil {
				return out, err
			}
			s1 := look(l.srv)
			out[0] = (s1.cpu - s0.cpu) / float64(n)
			if err := fill(n, func() bool { i := rand.IntN(n) + 1; return ask(i) == store.Waiting }); err != nil {
				return out, err
			}
			s2 := look(l.srv)
			out[2] = (s2.cpu - s1.cpu) / float64(n)
			granted := make(chan string, 1) // who joined first is not known to us
			defer st.OnWake(func(w store.Wakeup) {
				if w.Fence > 0 {
					granted <- w.SlotID
				}
			})()
			s2 = look(l.srv)
			hands := min(n, 200)
			done := 0
			holder := slot(0)
			began := time.Now()
			for ; done < hands && time.Since(began) < store.Life/3; done++ {
				if freed, err := st.Release(background, &store.Release{ID: "id", SlotID: holder, Budget: time.Second}); err != nil || !freed {
					return out, fmt.Errorf("releasing %q: %v, %v", holder, freed, err)
				}
				select {
				case holder = <-granted:
				case <-time.After(time.Second):
					return out, fmt.Errorf("after %d hand-offs nobody was granted", done)
				}
			}
			s3 := look(l.srv)
			out[1] = (s3.cpu - s2.cpu) / float64(done)
			return out, nil
		}()
		_ = st.Close()
		_ = rdb.Close()
		if err != nil {
			return nil, fmt.Errorf("%d waiters: %w", n, err)
		}
		r.add(number(float64(n)), number(measured[0]), number(measured[1]), number(measured[2]), fmt.Sprintf("%s %%", number(100*measured[2]*float64(n)/1e6)))
	}
	r.bound = "a line is a sorted set; joining, asking again and handing on grow with its logarithm. The last column is arithmetic: each waiter asks once a second. A hand-off is a release, one call alone."
	return r, nil
}

// shared is P processes that share the work: P semaphores with clients of their own,
// in this process.
func shared(processes int) contender {
	return contender{nameOurs, func(e entry) (*runner, error) {
		var clients []*redis.Client
		sems := make([]*gotsem.Semaphore, processes)
		for i := range sems {
			rdb := e.client()
			clients = append(clients, rdb)
			sems[i] = gotsem.NewGotsem(rdb, e.prefix, ttl, e.limit, nil, nil)
		}
		return &runner{
			pairOf: func(worker int) func(id string) bool {
				sem := sems[worker%processes]
				return func(id string) bool {
					res := sem.TryAcquire(background, id)
					if res.Acquired {
						sem.Release(background, id, res.SlotID)
					}
					return res.Acquired
				}
			},
			close: func() {
				for _, rdb := range clients {
					_ = rdb.Close()
				}
			},
		}, nil
	}}
}

func scaleProcessesTable(l *lab) (*report, error) {
	r := &report{head: append([]string{"processes", "ids"}, costHead...), bound: "256 goroutines, spread over so many semaphores with clients of their own in one process. The more processes share the same work, the fewer operations share a call, up to one call an operation."}
	for _, n := range []int{1, 10_000} {
		for _, p := range []int{1, 4, 16, 64} {
			c, err := l.contest(workload{name: fmt.Sprintf("scale-processes%d/%d", p, n), workers: 256, ids: n, limit: never, rounds: min(l.rounds, 3)}, shared(p))
			if err != nil {
				return nil, err
			}
			r.add(append([]string{strconv.Itoa(p), number(float64(n))}, c.costs(nameOurs)...)...)
		}
	}
	return r, nil
}

func scaleClusterTable(l *lab) (*report, error) {
	const nodes = 3
	cluster, stop, err := redistest.Launch("bench", func(tb redistest.TB) *redistest.Cluster { return redistest.StartCluster(tb, nodes, 0) })
	if err != nil {
		return nil, err
	}
	defer stop()
	clustered := contender{nameOurs, func(e entry) (*runner, error) {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
		ctx, cancel := context.WithTimeout(background, 10*time.Second)
		defer cancel()
		if err := rdb.Ping(ctx).Err(); err != nil {
			return nil, err
		}
		sem := gotsem.NewGotsem(rdb, e.prefix, ttl, e.limit, nil, nil)
		return &runner{
			pair: func(id string) bool {
				res := sem.TryAcquire(background, id)
				if res.Acquired {
					sem.Release(background, id, res.SlotID)
				}
				return res.Acquired
			},
			close: func() { _ = rdb.Close() },
		}, nil
	}}
	r := &report{head: append([]string{fmt.Sprintf("a Cluster of %d", nodes), "ids"}, costHead...)}
	for _, n := range []int{1, 10_000} {
		single, err := l.contest(workload{name: fmt.Sprint("scale-ids", n), workers: 256, ids: n, limit: never, rounds: min(l.rounds, 3)}, ours)
		if err != nil {
			return nil, err
		}
		c, err := l.contest(workload{name: fmt.Sprint("cluster", n), workers: 256, ids: n, limit: never, rounds: min(l.rounds, 3), addr: "cluster", watched: cluster.Nodes()}, clustered)
		if err != nil {
			return nil, err
		}
		r.add(append([]string{"one server", number(float64(n))}, single.costs(nameOurs)...)...)
		r.add(append([]string{"the Cluster, all nodes together", number(float64(n))}, c.costs(nameOurs)...)...)
		if n > 1 {
			for _, many := range []int{3, 10, 30, 100} {
				r.add(fmt.Sprintf("*arithmetic: %d nodes, a core each*", many), number(float64(n)), "", "", "", "", "", number(float64(many)*1e6/c.of(nameOurs, cpu).med))
			}
		}
	}
	r.bound = "on a Cluster a script call may name keys of one slot only, so that operations on many ids travel in one pipeline a node but in a call each. The nodes share this machine's cores, so pairs/s here say nothing; CPU a pair does: n nodes carry n × (one core ÷ CPU a pair), as long as ids are spread. One id stays on one node."
	return r, nil
}
