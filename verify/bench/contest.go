package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// farDelay, there and back, makes a round trip of 2 ms.
const farDelay = time.Millisecond

// lab is what the tables measure with.
type lab struct {
	options
	srv      *redistest.Server
	relay    *redistest.Relay
	contests map[string]*contest // that were run, by name
	prefixes int
}

// contender is one of those that are compared.
type contender struct {
	name string
	// enter sets one up for a workload. prefix is its own.
	enter func(e entry) (*runner, error)
}

// entry is what a contender is set up for.
type entry struct {
	addr   string
	prefix string
	limit  int
	ids    []string
}

// client is one as its users make it: with go-redis's default options.
func (e entry) client() *redis.Client { return redis.NewClient(&redis.Options{Addr: e.addr}) }

// runner is a contender that is set up.
type runner struct {
	// pair tries once to take a slot of an id, gives it back at once if it was
	// granted, and reports whether it was.
	pair   func(id string) bool
	pairOf func(worker int) func(id string) bool // nil, or gives each worker a pair of its own
	drain  func()                                // nil, or waits for what pair left under way
	close  func()
}

// workload is what a contest has its contenders do.
type workload struct {
	name    string
	workers int
	ids     int
	limit   int
	far     bool // over the relay
	rounds  int  // 0: as many as the run has
	slices  int  // rounds so many times as short, and as many more: a machine that sleeps between calls changes its pace by the second
	addr    string
	watched []*redistest.Server // whose work is counted; nil: the lab's
}

// contest is a workload and how each contender did, round by round.
type contest struct {
	workload
	results map[string][]sample
}

// sample is one round of one contender.
type sample struct {
	attempts, grants   float64 // a second
	p50, p99           float64 // of a pair, in µs
	allocs             float64 // a pair, in this process
	cpu                float64 // µs of the server's CPU a pair
	calls              float64 // commands that clients sent, a pair; those within scripts not counted
	commands           float64 // with those within scripts
	bytesIn, bytesOut  float64 // a pair, on the server's sockets
	scriptTime, lasted float64 // µs a pair inside scripts and commands; seconds
}

// ids names n ids.
func ids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "project:" + strconv.Itoa(i)
	}
	return out
}

// contest has contenders run w in turn. One that was run before under the same name is
// not run again: several tables look at different columns of it.
func (l *lab) contest(w workload, contenders ...contender) (*contest, error) {
	if c := l.contests[w.name]; c != nil {
		return c, nil
	}
	addr := l.srv.Addr()
	if w.far {
		addr = l.relay.Addr()
	}
	if w.addr != "" {
		addr = w.addr
	}
	if w.watched == nil {
		w.watched = []*redistest.Server{l.srv}
	}
	rounds := w.rounds
	if rounds == 0 {
		rounds = l.rounds
	}
	span := l.span
	if w.slices > 1 {
		rounds, span = rounds*w.slices, span/time.Duration(w.slices)
	}
	names := ids(w.ids)
	c := &contest{workload: w, results: make(map[string][]sample)}
	runners := make([]*runner, len(contenders))
	for i, r := range contenders {
		l.prefixes++
		run, err := r.enter(entry{addr: addr, prefix: fmt.Sprintf("bench%d:", l.prefixes), limit: w.limit, ids: names})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		defer run.close()
		runners[i] = run
		l.round(c, run, r.name, max(l.span/10, 20*time.Millisecond), names) // warm: connections, scripts
	}
	for range rounds {
		for i, r := range contenders {
			s, err := l.round(c, runners[i], r.name, span, names)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
			c.results[r.name] = append(c.results[r.name], s)
		}
	}
	l.contests[w.name] = c
	return c, nil
}

// timedEvery is of how many pairs one is timed. Two looks at the clock and a note of what
// passed are nearly a tenth of what the quickest pairs cost.
const timedEvery = 8

// round runs one contender for a while.
func (l *lab) round(c *contest, run *runner, name string, span time.Duration, names []string) (sample, error) {
	type worker struct {
		attempts, grants int
		times            histogram
		_                [64]byte
	}
	workers := make([]worker, c.workers)
	var stop atomic.Bool
	var all sync.WaitGroup
	runtime.GC() // of what the contender before left
	before := lookAll(c.watched)
	var m0, m1 runtime.MemStats
	runtime.ReadMemStats(&m0)
	began := time.Now()
	pprof.SetGoroutineLabels(pprof.WithLabels(background, pprof.Labels("contender", name)))
	defer pprof.SetGoroutineLabels(background)
	for i := range workers {
		w, pair := &workers[i], run.pair
		if run.pairOf != nil {
			pair = run.pairOf(i)
		}
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), uint64(c.ids)))
			for !stop.Load() {
				id := names[0]
				if len(names) > 1 {
					id = names[random.IntN(len(names))]
				}
				var at time.Time
				w.attempts++
				timed := w.attempts%timedEvery == 0
				if timed {
					at = time.Now()
				}
				if pair(id) {
					w.grants++
				}
				if timed {
					w.times.add(time.Since(at))
				}
			}
		})
	}
	timer := time.AfterFunc(span, func() { stop.Store(true) })
	defer timer.Stop()
	all.Wait()
	lasted := time.Since(began)
	if run.drain != nil {
		run.drain()
	}
	runtime.ReadMemStats(&m1)
	after := lookAll(c.watched)
	var sum worker
	for i := range workers {
		sum.attempts += workers[i].attempts
		sum.grants += workers[i].grants
		sum.times.merge(&workers[i].times)
	}
	if sum.grants == 0 && c.limit > 0 {
		return sample{}, fmt.Errorf("not one of %d attempts was granted in %v", sum.attempts, lasted)
	}
	n := float64(sum.attempts)
	return sample{
		attempts: n / lasted.Seconds(), grants: float64(sum.grants) / lasted.Seconds(), lasted: lasted.Seconds(),
		p50: sum.times.quantile(0.5) / 1e3, p99: sum.times.quantile(0.99) / 1e3,
		allocs:  float64(m1.Mallocs-m0.Mallocs) / n,
		cpu:     (after.cpu - before.cpu) / n,
		calls:   (after.calls - before.calls) / n,
		bytesIn: (after.bytesIn - before.bytesIn) / n, bytesOut: (after.bytesOut - before.bytesOut) / n,
		commands: (after.commands - before.commands) / n, scriptTime: (after.scriptTime - before.scriptTime) / n,
	}, nil
}

// sight is a server's counters.
type sight struct {
	cpu        float64 // µs
	calls      float64
	commands   float64
	scriptTime float64 // µs
	bytesIn    float64
	bytesOut   float64
	memory     float64
}

func lookAll(servers []*redistest.Server) (sum sight) {
	for _, srv := range servers {
		s := look(srv)
		sum.cpu += s.cpu
		sum.calls += s.calls
		sum.commands += s.commands
		sum.scriptTime += s.scriptTime
		sum.bytesIn += s.bytesIn
		sum.bytesOut += s.bytesOut
		sum.memory += s.memory
	}
	return sum
}

// look reads a server's counters. Looking costs the server about a tenth of a
// millisecond.
func look(srv *redistest.Server) (s sight) {
	value := func(m map[string]string, field string) float64 {
		x, _ := strconv.ParseFloat(m[field], 64)
		return x
	}
	cpu, stats := srv.Info("cpu"), srv.Info("stats")
	s.cpu = 1e6 * (value(cpu, "used_cpu_sys") + value(cpu, "used_cpu_user"))
	s.bytesIn, s.bytesOut = value(stats, "total_net_input_bytes"), value(stats, "total_net_output_bytes")
	s.memory = value(srv.Info("memory"), "used_memory")
	for field, text := range srv.Info("commandstats") {
		name := strings.TrimPrefix(field, "cmdstat_")
		var calls, usec float64
		for part := range strings.SplitSeq(text, ",") {
			k, v, _ := strings.Cut(part, "=")
			x, _ := strconv.ParseFloat(v, 64)
			switch k {
			case "calls":
				calls = x
			case "usec":
				usec = x
			}
		}
		switch name {
		case "info", "hello", "client|setinfo", "client|maint_notifications", "command|docs", "ping":
			continue // the lab's own, and connections that open
		}
		s.commands += calls
		switch name {
		case "evalsha", "eval", "fcall":
			s.calls += calls
			s.scriptTime += usec
		}
	}
	return s
}

// of is a figure of a contender over its rounds.
func (c *contest) of(name string, figure func(sample) float64) spread {
	xs := make([]float64, 0, len(c.results[name]))
	for _, s := range c.results[name] {
		xs = append(xs, figure(s))
	}
	return spreadOf(xs)
}

// ratio is one of medians.
func (c *contest) ratio(a, b string, figure func(sample) float64) float64 {
	return c.of(a, figure).med / c.of(b, figure).med
}

// What of a sample.
func attempts(s sample) float64 { return s.attempts }
func grants(s sample) float64   { return s.grants }
func p50(s sample) float64      { return s.p50 }
func p99(s sample) float64      { return s.p99 }
func allocs(s sample) float64   { return s.allocs }
func cpu(s sample) float64      { return s.cpu }
func calls(s sample) float64    { return s.calls }
func commands(s sample) float64 { return s.commands }
func script(s sample) float64   { return s.scriptTime }
func bytesIn(s sample) float64  { return s.bytesIn }
func bytesOut(s sample) float64 { return s.bytesOut }

var background = context.Background()
