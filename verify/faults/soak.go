package faults

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/verify/skew"
)

// Kind is a kind of deployment.
type Kind string

// The kinds.
const (
	Single   Kind = "single"
	Sentinel Kind = "sentinel"
	Cluster  Kind = "cluster"
)

// A soak: four processes want slots of four ids all the time, one fault follows the
// other, drawn from a seed. Two of the processes speak TLS.
const (
	soakLimit = 5
	soakTTL   = 3 * time.Second
	soakGrace = soakTTL + 2*time.Second
)

var soakIDs = []string{"a", "b{x}", "c", "d"}

// soakLevels are the further ids of every third call: a tenant's, and all.
var soakLevels = []string{"tenant", "all"}

// soak is one run.
type soak struct {
	tb      redistest.TB
	r       *rand.Rand
	kind    Kind
	clocks  *skew.Clocks
	out     io.Writer
	referee *Referee
	config  workerConfig
	workers []*worker
	born    int
	began   time.Time
	counts  map[string]int
	losses  []Stretch // when the memory may have been lost

	single   *redistest.Server
	relays   [][]*redistest.Relay // of each worker, one in front of each server
	sentinel *redistest.Sentinel
	cluster  *redistest.Cluster
	offset   time.Duration
	forward  bool // the clock steps forward only
	rdb      redis.UniversalClient
}

// SoakResult is what a run showed.
type SoakResult struct {
	Kind   Kind
	Seed   uint64
	Took   time.Duration
	Faults int
	Leases int
	Order  int // pairs of a grant and a waiter of which it is known who came first
	Told   int
	Left   time.Duration // from the last release until nothing was left in Redis
	Wrong  []string
	Counts map[string]int
}

// Soak runs one seed for a while. If wrapped, each client is of a type of its own, with
// go-redis's inside: what it is connected to cannot be seen from its type.
func Soak(kind Kind, seed uint64, length time.Duration, wrapped bool, clocks *skew.Clocks, out io.Writer) (SoakResult, error) {
	return Within(fmt.Sprintf("soak %s %d", kind, seed), func(tb redistest.TB) SoakResult {
		s := &soak{tb: tb, r: rand.New(rand.NewPCG(seed, 3)), kind: kind, clocks: clocks, out: out, referee: NewReferee(), counts: map[string]int{}}
		s.forward = seed%2 == 1
		s.start(seed, wrapped)
		return s.run(seed, length)
	})
}

func (s *soak) must(err error) {
	if err != nil {
		s.tb.Fatalf("faults: %v", err)
	}
}

func (s *soak) start(seed uint64, wrapped bool) {
	s.config = workerConfig{
		Kind: s.kind, Prefix: "soak:", Limit: soakLimit, TTL: soakTTL, Grace: soakGrace, Outage: gotsem.Closed, Seed: seed, Wrapped: wrapped,
		Load: Load{IDs: soakIDs, Levels: soakLevels, Workers: 8, TryShare: 30, Patience: 4 * time.Second, HoldLeast: 20 * time.Millisecond, HoldMost: 5 * time.Second, Pause: 50 * time.Millisecond},
	}
	switch s.kind {
	case Single:
		s.single = redistest.Start(s.tb)
		s.config.Addrs = []string{s.single.Addr()}
		s.rdb = s.single.Client()
	case Sentinel:
		s.sentinel = redistest.StartSentinel(s.tb, redistest.WithArgs("--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"))
		s.config.Addrs, s.config.Master = s.sentinel.Addrs(), redistest.MasterName
		s.rdb = s.sentinel.Client()
	case Cluster:
		s.cluster = redistest.StartCluster(s.tb, 3, 1)
		s.config.Addrs = s.cluster.Addrs()
		s.rdb = s.cluster.Client()
	default:
		s.tb.Fatalf("faults: no deployment is called %q", s.kind)
	}
	identity := redistest.NewIdentity(s.tb)
	for at := range 4 {
		var mine []*redistest.Relay
		for _, srv := range s.servers() {
			if overTLS(at) {
				mine = append(mine, redistest.NewTLSRelay(s.tb, srv.Addr(), identity))
			} else {
				mine = append(mine, redistest.NewRelay(s.tb, srv.Addr()))
			}
		}
		s.relays = append(s.relays, mine)
	}
	for i := range 4 {
		s.workers = append(s.workers, s.spawn(i))
	}
	s.tb.Cleanup(func() {
		for _, w := range s.workers {
			w.kill(s.referee)
		}
	})
}

// overTLS says whether the worker at a place speaks TLS.
func overTLS(at int) bool { return at%2 == 1 }

func (s *soak) spawn(at int) *worker {
	s.born++
	c := s.config
	c.Who, c.Seed = fmt.Sprint("w", s.born), c.Seed*1000+uint64(s.born)
	c.Routes, c.TLS = make(map[string]string), overTLS(at)
	for i, srv := range s.servers() {
		c.Routes[srv.Addr()] = s.relays[at][i].Addr()
	}
	w, err := startWorker(c, s.referee)
	s.must(err)
	return w
}

type soakFault struct {
	name  string
	kinds string
	do    func(s *soak)
}

// between draws a length of time.
func (s *soak) between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.r.Int64N(int64(most-least)))
}

func (s *soak) pause(least, most time.Duration) { time.Sleep(s.between(least, most)) }

// servers are those that hold data.
func (s *soak) servers() []*redistest.Server {
	switch s.kind {
	case Sentinel:
		return s.sentinel.Servers()
	case Cluster:
		return s.cluster.Nodes()
	}
	return []*redistest.Server{s.single}
}

// network is a stretch of network that is made bad: a worker's way to one server, or its
// ways to all of them.
type network []*redistest.Relay

func (s *soak) network() network {
	mine := s.relays[s.r.IntN(len(s.relays))]
	if one := s.r.IntN(2 * len(mine)); one < len(mine) {
		return mine[one : one+1]
	}
	return mine
}

// hang has a stretch of network hang at a step for a while.
func (s *soak) hang(step redistest.Step) {
	where := s.network()
	where.each(func(r *redistest.Relay) { r.HangAt(step) })
	s.pause(100*time.Millisecond, 2*soakTTL)
	where.each(func(r *redistest.Relay) { r.HangAt(redistest.Nowhere) })
}

func (n network) each(do func(r *redistest.Relay)) {
	for _, r := range n {
		do(r)
	}
}

// primary is a server that takes writes for some id, and that id's cluster slot.
func (s *soak) primary() (*redistest.Server, int) {
	switch s.kind {
	case Sentinel:
		return s.sentinel.Primary(), 0
	case Cluster:
		slot := redistest.Slot("soak:" + soakIDs[s.r.IntN(len(soakIDs))])
		return s.cluster.NodeFor(slot), slot
	}
	return s.single, 0
}

// say sends a command that may fail: the server may be in no state to take it.
func say(srv *redistest.Server, args ...any) { _, _ = srv.Do(args...) }

var soakFaults = []soakFault{
	{"FLUSHALL", "single sentinel cluster", func(s *soak) { p, _ := s.primary(); say(p, "FLUSHALL") }},
	{"SCRIPT FLUSH", "single sentinel cluster", func(s *soak) {
		for range 5 {
			p, _ := s.primary()
			say(p, "SCRIPT", "FLUSH")
			s.pause(20*time.Millisecond, 100*time.Millisecond)
		}
	}},
	{"CLIENT KILL normal", "single sentinel cluster", func(s *soak) { p, _ := s.primary(); say(p, "CLIENT", "KILL", "TYPE", "normal") }},
	{"CLIENT KILL pubsub", "single sentinel cluster", func(s *soak) { p, _ := s.primary(); say(p, "CLIENT", "KILL", "TYPE", "pubsub") }},
	{"CLIENT PAUSE", "single sentinel cluster", func(s *soak) {
		p, _ := s.primary()
		say(p, "CLIENT", "PAUSE", s.between(50*time.Millisecond, 2*time.Second).Milliseconds(), "ALL")
	}},
	{"a worker is killed", "single sentinel cluster", func(s *soak) {
		i := s.r.IntN(len(s.workers))
		s.workers[i].kill(s.referee)
		s.workers[i] = s.spawn(i)
	}},
	{"a worker is stopped", "single sentinel cluster", func(s *soak) {
		w := s.workers[s.r.IntN(len(s.workers))]
		w.signal(syscall.SIGSTOP)
		s.pause(100*time.Millisecond, 2*soakTTL)
		w.signal(syscall.SIGCONT)
	}},

	{"killed, back empty", "single", func(s *soak) { s.single.Kill(); s.pause(0, time.Second); s.single.Restart(false) }},
	{"restart with data", "single", func(s *soak) { s.single.Restart(true) }},
	{"saved, killed, back with what was saved", "single", func(s *soak) {
		say(s.single, "SAVE")
		s.pause(0, 2*time.Second)
		s.single.Kill()
		s.pause(0, time.Second)
		s.single.Restart(true)
	}},
	{"server stopped", "single", func(s *soak) { s.single.Stop(); s.pause(100*time.Millisecond, 2*soakTTL); s.single.Cont() }},
	{"clock steps", "single", func(s *soak) {
		if s.forward {
			s.offset += s.between(0, time.Minute)
		} else {
			s.offset = s.between(-time.Minute, time.Minute)
		}
		s.must(s.clocks.Set(s.single, s.offset))
	}},
	{"replies lost", "single sentinel cluster", func(s *soak) {
		for range 5 {
			n := 1 + s.r.IntN(3)
			s.network().each(func(r *redistest.Relay) { r.DropReplies(n) })
			s.pause(10*time.Millisecond, 200*time.Millisecond)
		}
	}},
	{"replies doubled", "single sentinel cluster", func(s *soak) {
		for range 10 {
			n, how := 1+s.r.IntN(3), []redistest.Copy{redistest.AtOnce, redistest.BeforeNext}[s.r.IntN(2)]
			s.network().each(func(r *redistest.Relay) { r.DoubleReplies(n, how) })
			s.pause(10*time.Millisecond, 200*time.Millisecond)
		}
	}},
	{"replies late", "single sentinel cluster", func(s *soak) {
		where, d := s.network(), s.between(time.Millisecond, 300*time.Millisecond)
		where.each(func(r *redistest.Relay) { r.SetDelay(d) })
		s.pause(100*time.Millisecond, soakTTL)
		where.each(func(r *redistest.Relay) { r.SetDelay(0) })
	}},
	{"packets late", "single sentinel cluster", func(s *soak) { // sent again by TCP, after who wrote them has given up
		for range 10 {
			where, d := s.network(), s.between(100*time.Millisecond, 1500*time.Millisecond)
			where.each(func(r *redistest.Relay) { r.SetDelay(d) })
			s.pause(5*time.Millisecond, 50*time.Millisecond)
			where.each(func(r *redistest.Relay) { r.SetDelay(0) })
			s.pause(10*time.Millisecond, 300*time.Millisecond)
		}
	}},
	{"host gone", "single sentinel cluster", func(s *soak) { s.hang(redistest.AtConnect) }}, // no RST: SYNs are dropped
	{"handshake hangs", "single sentinel cluster", func(s *soak) { s.hang(redistest.AtHandshake) }},
	{"HELLO hangs", "single sentinel cluster", func(s *soak) { s.hang(redistest.AtHello) }},
	{"done and not answered", "single sentinel cluster", func(s *soak) { s.hang(redistest.AtReply) }},
	{"half-open connections", "single sentinel cluster", func(s *soak) { s.network().each((*redistest.Relay).FreezeExisting) }},
	{"black hole", "single sentinel cluster", func(s *soak) {
		where := s.network()
		where.each(func(r *redistest.Relay) { r.Blackhole(true) })
		s.pause(100*time.Millisecond, 2*soakTTL)
		where.each(func(r *redistest.Relay) { r.Blackhole(false) })
	}},
	{"connections cut", "single sentinel cluster", func(s *soak) { s.network().each((*redistest.Relay).CutAll) }},
	{"connections refused", "single sentinel cluster", func(s *soak) {
		where := s.network()
		where.each(func(r *redistest.Relay) { r.Refuse(true); r.CutAll() })
		s.pause(100*time.Millisecond, 2*soakTTL)
		where.each(func(r *redistest.Relay) { r.Refuse(false) })
	}},

	{"primary killed", "sentinel", func(s *soak) {
		old := s.sentinel.KillPrimary()
		s.sentinel.AwaitPromotion(old)
		s.sentinel.Heal()
	}},
	{"primary stopped", "sentinel", func(s *soak) {
		old := s.sentinel.StopPrimary()
		s.sentinel.AwaitPromotion(old)
		s.sentinel.Heal()
	}},
	{"a replica restarts", "sentinel", func(s *soak) {
		primary := s.sentinel.Primary()
		for _, srv := range s.sentinel.Servers() {
			if srv != primary {
				srv.Kill()
				break
			}
		}
		s.pause(0, time.Second)
		s.sentinel.Heal()
	}},

	{"primary killed", "cluster", func(s *soak) {
		_, slot := s.primary()
		old := s.cluster.KillMaster(slot)
		s.cluster.AwaitPromotion(slot, old)
		s.cluster.Heal()
	}},
	{"primary stopped", "cluster", func(s *soak) {
		_, slot := s.primary()
		old := s.cluster.StopMaster(slot)
		s.cluster.AwaitPromotion(slot, old)
		s.cluster.Heal()
	}},
	{"slot moves", "cluster", func(s *soak) {
		from, slot := s.primary()
		for _, id := range soakIDs { // to the primary of another id
			if to := s.cluster.NodeFor(redistest.Slot("soak:" + id)); to != from {
				m := s.cluster.BeginMigration(slot, from, to)
				s.pause(0, 300*time.Millisecond)
				m.Move(2)
				s.pause(0, 300*time.Millisecond)
				m.Finish()
				return
			}
		}
	}},
}

// memoryLost are the faults after which Redis may know less than before.
var memoryLost = []string{
	"FLUSHALL", "killed, back empty", "restart with data", "saved, killed, back with what was saved", "primary killed", "primary stopped",
}

func (s *soak) run(seed uint64, length time.Duration) SoakResult {
	s.began = time.Now()
	result := SoakResult{Kind: s.kind, Seed: seed, Counts: s.counts}
	var mine []soakFault
	for _, f := range soakFaults {
		if strings.Contains(f.kinds, string(s.kind)) {
			mine = append(mine, f)
		}
	}
	s.pause(2*time.Second, 3*time.Second) // everybody has met the marker
	for time.Since(s.began) < length {
		f := mine[s.r.IntN(len(mine))]
		_, _ = fmt.Fprintf(s.out, "%s seed %d %7.2f s  %s\n", s.kind, seed, time.Since(s.began).Seconds(), f.name)
		from := now()
		f.do(s)
		if slices.Contains(memoryLost, f.name) {
			s.losses = append(s.losses, Stretch{from, now()})
		}
		s.counts[f.name]++
		result.Faults++
		if s.r.IntN(2) == 0 {
			s.pause(300*time.Millisecond, soakTTL) // into the grace, perhaps
		} else {
			s.pause(soakTTL, 2*soakGrace)
		}
	}
	// All is well again: everybody who waits is served.
	calm := now()
	served := func(id string) bool {
		return FirstAfter(s.referee.Spans(), calm, func(sp Span) bool { return sp.ID == id }) >= 0
	}
	for _, id := range append(slices.Clone(soakIDs), soakLevels...) {
		if err := await("a grant of "+id, 2*soakGrace+10*time.Second, func() error {
			if !served(id) {
				return errors.New("none since the last fault")
			}
			return nil
		}); err != nil {
			result.Wrong = append(result.Wrong, err.Error())
		}
	}
	for _, w := range s.workers {
		if err := w.stop(s.referee); err != nil {
			result.Wrong = append(result.Wrong, err.Error())
		}
	}
	// Who was killed was so before all was well. Whatever is held longer than a TTL after
	// the others gave theirs back is nobody's.
	ended := time.Now()
	if err := await("nothing to be left behind", soakTTL, s.nothingLeft); err != nil {
		result.Wrong = append(result.Wrong, err.Error())
	}
	result.Left = time.Since(ended)
	spans := s.referee.Spans()
	result.Leases, result.Told, result.Took = len(spans), Told(spans), time.Since(s.began)
	if result.Told > 0 {
		result.Wrong = append(result.Wrong, fmt.Sprintf("%d were told lost before their time", result.Told))
	}
	result.Wrong = append(result.Wrong, Judge(spans, soakLimit)...)
	var overtaken []string
	result.Order, overtaken = Overtaken(s.referee.Asks(), s.losses)
	result.Wrong = append(result.Wrong, overtaken...)
	return result
}

func (s *soak) nothingLeft() error {
	return nothingLeft(s.rdb, s.config.Prefix, soakLimit, append(slices.Clone(soakIDs), soakLevels...))
}

func (r SoakResult) String() string {
	verdict := "ok  "
	if len(r.Wrong) > 0 {
		verdict = "FAIL"
	}
	s := fmt.Sprintf("%s %-8s seed %d, %v: %d faults, %d leases, %d pairs in order, %d told lost, nothing left after %v",
		verdict, r.Kind, r.Seed, r.Took.Round(time.Second), r.Faults, r.Leases, r.Order, r.Told, r.Left.Round(time.Millisecond))
	for _, w := range r.Wrong {
		s += "\n     " + w
	}
	return s
}
