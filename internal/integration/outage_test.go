//go:build unix

package integration

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap/zapcore"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

const (
	budget = gotsem.DefaultStoreTimeout
	// slack is what a busy machine may add to a bound on time: five times the 100 ms
	// that the bound itself allows.
	slack = 500 * time.Millisecond
)

// hangs are the ways in which Redis does not answer. Each breaks a server, behind a
// relay, and returns what mends it.
var hangs = map[string]func(t *testing.T, srv *redistest.Server, relay *redistest.Relay) (mend func()){
	"stopped": func(_ *testing.T, srv *redistest.Server, _ *redistest.Relay) func() {
		srv.Stop()
		return srv.Cont
	},
	"paused": func(t *testing.T, srv *redistest.Server, _ *redistest.Relay) func() {
		const pause = 3 * time.Second // nothing can end it earlier: it would be paused too
		ends := time.Now().Add(pause)
		do(t, srv, "CLIENT", "PAUSE", pause.Milliseconds(), "ALL")
		return func() { time.Sleep(time.Until(ends)) } // the end of a load, not an event
	},
	"blackhole": func(_ *testing.T, _ *redistest.Server, relay *redistest.Relay) func() {
		relay.Blackhole(true)
		return func() { relay.Blackhole(false) }
	},
	"refused": func(_ *testing.T, _ *redistest.Server, relay *redistest.Relay) func() {
		relay.Refuse(true)
		relay.CutAll()
		return func() { relay.Refuse(false) }
	},
}

// Redis does not answer, and go-redis is at its default options, which wait for
// seconds: every call is back in time, nothing piles up, the breaker opens, and when
// Redis answers again calls count again and what was given back is free.
func TestCallsReturnInTimeWhenRedisHangs(t *testing.T) {
	clients := map[string]func(addr string) redis.UniversalClient{
		"client": func(addr string) redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: addr}) },
		// One that knows nothing of the deadline of a ctx.
		"wrapped": func(addr string) redis.UniversalClient {
			return wrapped{redis.NewClient(&redis.Options{Addr: addr})}
		},
	}
	for _, test := range []struct{ hang, client string }{
		{"stopped", "client"}, {"paused", "client"}, {"blackhole", "client"}, {"refused", "client"},
		{"stopped", "wrapped"}, {"refused", "wrapped"},
	} {
		t.Run(test.hang+"/"+test.client, func(t *testing.T) {
			srv := redistest.Start(t)
			relay := redistest.NewRelay(t, srv.Addr())
			rdb := clients[test.client](relay.Addr())
			t.Cleanup(func() { _ = rdb.Close() })
			redisHangs(t, srv, rdb, test.hang, func() func() { return hangs[test.hang](t, srv, relay) })
		})
	}
}

func redisHangs(t *testing.T, srv *redistest.Server, rdb redis.UniversalClient, how string, hang func() (mend func())) {
	const ttl = 30 * time.Second
	ctx := t.Context()
	sem, logs := loudSem(t, rdb, ttl, 10)
	leases := fullSem(t, rdb, 10, func(o *gotsem.Options) { o.TTL, o.Outage, o.StoreTimeout = ttl, gotsem.Open, budget })
	warm(t, sem)
	held := sem.TryAcquire(ctx, "hang")
	lease, err := leases.Acquire(ctx, "hang")
	if err != nil || !held.Acquired || held.FailedOpen() {
		t.Fatal(held, err)
	}
	base := runtime.NumGoroutine()
	before, _ := ours()
	mend := hang()

	// A short ctx, first of all.
	began := time.Now()
	short, cancel := context.WithTimeout(ctx, 25*time.Millisecond)
	r := sem.TryAcquire(short, "hang")
	cancel()
	if took := time.Since(began); took > 25*time.Millisecond+slack {
		t.Errorf("with 25 ms to go it took %v", took)
	}
	if r.Acquired && !r.FailedOpen() || r.Acquired && how != "refused" {
		t.Errorf("%+v within 25 ms: a ctx that is over is no outage", r)
	}

	// No deadline, the first time.
	began = time.Now()
	r = sem.TryAcquire(ctx, "hang")
	if took := time.Since(began); took > budget+slack {
		t.Errorf("without a deadline it took %v", took)
	}
	if !r.FailedOpen() || r.Active != 0 || r.Max != 10 {
		t.Errorf("%+v, want to fail open", r)
	}

	// A thousand at once, before and after the breaker opens.
	const crowd = 1000
	var slowest, most atomic.Int64
	var all sync.WaitGroup
	start := make(chan struct{})
	for range crowd {
		all.Go(func() {
			<-start
			began := time.Now()
			r := sem.TryAcquire(ctx, "hang")
			slowest.Store(max(slowest.Load(), int64(time.Since(began))))
			if !r.FailedOpen() {
				t.Errorf("%+v, want to fail open", r)
			}
		})
	}
	close(start)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for range 50 {
			most.Store(max(most.Load(), int64(runtime.NumGoroutine())))
			time.Sleep(time.Millisecond) // a sample
		}
	}()
	all.Wait()
	<-watched
	if took := time.Duration(slowest.Load()); took > budget+2*slack {
		t.Errorf("the slowest of %d took %v", crowd, took)
	}
	if n := most.Load(); n > int64(base+crowd+crowd/10) { // those of the pool's dials, and of other tests' ends, among them
		t.Errorf("%d goroutines for %d callers, %d before", n, crowd, base)
	}

	// Known to be down, a call asks nobody.
	soon(t, patience, "the breaker to open", func() bool {
		sem.TryAcquire(ctx, "hang")
		return sem.Stats().Down
	})
	best := time.Hour
	for range 20 {
		began := time.Now()
		for range 100 {
			sem.TryAcquire(ctx, "hang")
		}
		best = min(best, time.Since(began)/100)
	}
	// 10 µs, of which the race detector makes many; BenchmarkBreakerOpen measures it.
	if best > 20*10*time.Microsecond {
		t.Errorf("with the breaker open a call takes %v", best)
	}

	// Given back, and free later.
	began = time.Now()
	sem.Release(ctx, "hang", held.SlotID)
	if took := time.Since(began); took > budget+slack {
		t.Errorf("Release took %v", took)
	}
	began = time.Now()
	if err := lease.Release(ctx); !errors.Is(err, gotsem.ErrUnavailable) {
		t.Errorf("Release of a lease: %v, want ErrUnavailable", err)
	}
	if took := time.Since(began); took > budget+slack {
		t.Errorf("Release of a lease took %v", took)
	}
	sem.Release(ctx, "hang", r.SlotID) // the failedOpenID: a no-op

	mend()
	began = time.Now()
	soon(t, 5*2*time.Second, "calls to count again", func() bool {
		r = sem.TryAcquire(ctx, "counted")
		return r.Acquired && !r.FailedOpen()
	})
	back := time.Since(began)
	if m := members(t, srv, "counted"); m[r.SlotID] == 0 {
		t.Errorf("it says that it counts, and %q is not in %v", r.SlotID, m)
	}
	soon(t, patience, "what was given back to be free", func() bool { return len(members(t, srv, "hang")) == 0 })
	freed := time.Since(began)
	if n := awaitOurs(patience, before); n > before {
		_, stacks := ours()
		t.Errorf("%d goroutines stay, %d before:\n%s", n, before, stacks)
	}
	t.Logf("%d goroutines at most for %d callers, the slowest %v; %v a call with the breaker open; back after %v, all free after %v",
		most.Load(), crowd, time.Duration(slowest.Load()).Round(time.Millisecond), best, back.Round(time.Millisecond), freed.Round(time.Millisecond))

	// One line when it went, one when it came back.
	soon(t, patience, "a line that says that it came back", func() bool { return logs.FilterMessageSnippet("answers again").Len() > 0 })
	var down, up, other int
	for _, e := range logs.All() {
		switch {
		case e.Level == zapcore.ErrorLevel && strings.Contains(e.Message, "unreachable"):
			down++
		case e.Level == zapcore.InfoLevel && strings.Contains(e.Message, "answers again"):
			up++
		case strings.Contains(e.Message, "not acquired"): // the short ctx
		default:
			other++
		}
	}
	if down != 1 || up != 1 || other != 0 {
		t.Errorf("%d lines say that it went, %d that it came back, %d something else: %v", down, up, other, logs.All())
	}
}

// awaitOurs waits until there are at most n goroutines of ours, and returns how many
// there are.
func awaitOurs(d time.Duration, n int) (now int) {
	for ends := time.Now().Add(d); ; time.Sleep(20 * time.Millisecond) {
		if now, _ = ours(); now <= n || time.Now().After(ends) {
			return now
		}
	}
}

// Those who stand in line go by the policy as well, at once; who may wait on keeps
// its place.
func TestWaitersGoByThePolicyWhenRedisHangs(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	relay := redistest.NewRelay(t, srv.Addr())
	through := func() redis.UniversalClient {
		rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	ctx := t.Context()
	holder := fullSem(t, srv.Client(), 1, func(o *gotsem.Options) { o.TTL = time.Minute })
	lease, err := holder.Acquire(ctx, "line")
	if err != nil {
		t.Fatal(err)
	}
	type end struct {
		lease *gotsem.Lease
		err   error
	}
	ends := make(map[gotsem.Outage]chan end)
	for _, policy := range []gotsem.Outage{gotsem.Closed, gotsem.Open, gotsem.Local} {
		sem := fullSem(t, through(), 1, func(o *gotsem.Options) { o.Outage, o.Queue = policy, 5 })
		c := make(chan end, 1)
		ends[policy] = c
		go func() {
			l, err := sem.Acquire(ctx, "line")
			c <- end{l, err}
		}()
	}
	soon(t, patience, "all to wait", func() bool { return len(waiting(t, srv, "line")) == 3 })
	relay.Blackhole(true)
	if e := received(t, ends[gotsem.Closed], patience, "Closed"); !errors.Is(e.err, gotsem.ErrUnavailable) || errors.Is(e.err, gotsem.ErrFull) {
		t.Errorf("closed: %v, want ErrUnavailable, and not full", e.err)
	}
	if e := received(t, ends[gotsem.Open], patience, "Open"); e.err != nil || !e.lease.FailedOpen() || e.lease.Fence() != 0 {
		t.Errorf("open: %v, want a lease that is marked", e.err)
	} else if err := e.lease.Release(ctx); err != nil {
		t.Error(err)
	}
	select {
	case e := <-ends[gotsem.Local]:
		t.Fatalf("local: %v: it held nothing, and others may hold everything", e.err)
	default:
	}
	relay.Blackhole(false)
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	e := received(t, ends[gotsem.Local], patience, "the one that waited on to be served")
	if e.err != nil {
		t.Fatal(e.err)
	}
	if m := members(t, srv, "line"); m[e.lease.SlotID()] == 0 {
		t.Errorf("%q is not in %v", e.lease.SlotID(), m)
	}
	if err := e.lease.Release(ctx); err != nil {
		t.Error(err)
	}
}

// A Redis that answers, but cannot serve for now, is an outage.
func TestARedisThatCannotServeIsAnOutage(t *testing.T) {
	client := func(srv *redistest.Server) func() redis.UniversalClient {
		return func() redis.UniversalClient { return srv.Client() }
	}
	for code, break_ := range map[string]func(t *testing.T) (client func() redis.UniversalClient, mend func()){
		"READONLY": func(t *testing.T) (func() redis.UniversalClient, func()) {
			primary, srv := redistest.Start(t), redistest.Start(t)
			host, port, _ := strings.Cut(primary.Addr(), ":")
			do(t, srv, "REPLICAOF", host, port)
			soon(t, patience, "replication", func() bool { return srv.Info("replication")["master_link_status"] == "up" })
			return client(srv), func() { do(t, srv, "REPLICAOF", "NO", "ONE") }
		},
		"MASTERDOWN": func(t *testing.T) (func() redis.UniversalClient, func()) {
			primary := redistest.Start(t)
			srv := redistest.Start(t, redistest.WithArgs("--replica-serve-stale-data", "no"))
			host, port, _ := strings.Cut(primary.Addr(), ":")
			do(t, srv, "REPLICAOF", host, port)
			soon(t, patience, "replication", func() bool { return srv.Info("replication")["master_link_status"] == "up" })
			primary.Kill()
			soon(t, patience, "the replica to notice", func() bool { return srv.Info("replication")["master_link_status"] == "down" })
			return client(srv), func() { do(t, srv, "REPLICAOF", "NO", "ONE") }
		},
		"OOM": func(t *testing.T) (func() redis.UniversalClient, func()) {
			srv := redistest.Start(t)
			do(t, srv, "CONFIG", "SET", "maxmemory", "1")
			return client(srv), func() { do(t, srv, "CONFIG", "SET", "maxmemory", "0") }
		},
		"NOREPLICAS": func(t *testing.T) (func() redis.UniversalClient, func()) {
			srv := redistest.Start(t)
			do(t, srv, "CONFIG", "SET", "min-replicas-to-write", "1")
			return client(srv), func() { do(t, srv, "CONFIG", "SET", "min-replicas-to-write", "0") }
		},
		"CLUSTERDOWN": func(t *testing.T) (func() redis.UniversalClient, func()) {
			cl := redistest.StartCluster(t, 3, 0)
			own := cl.NodeFor(redistest.Slot(prefix + "down"))
			for _, node := range cl.Nodes() {
				if node != own {
					node.Kill()
					break
				}
			}
			soon(t, patience, "the cluster to be down", func() bool {
				return strings.Contains(fmt.Sprint(do(t, own, "CLUSTER", "INFO")), "cluster_state:fail")
			})
			return func() redis.UniversalClient { return cl.Client() }, cl.Heal
		},
		"LOADING": func(t *testing.T) (func() redis.UniversalClient, func()) {
			srv := redistest.Start(t, redistest.WithArgs("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"))
			do(t, srv, "DEBUG", "POPULATE", 2000, "filler", 1000)
			loaded := make(chan struct{})
			go func() {
				defer close(loaded)
				rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), ReadTimeout: patience, MaxRetries: -1})
				defer func() { _ = rdb.Close() }()
				if err := rdb.Do(context.Background(), "DEBUG", "RELOAD").Err(); err != nil {
					t.Error(err)
				}
			}()
			soon(t, patience, "Redis to be loading", func() bool {
				_, err := srv.Do("GET", "filler:1")
				return err != nil && strings.HasPrefix(err.Error(), "LOADING")
			})
			return client(srv), func() { received(t, loaded, patience, "the load to end") }
		},
		"BUSY": func(t *testing.T) (func() redis.UniversalClient, func()) {
			srv := redistest.Start(t, redistest.WithArgs("--busy-reply-threshold", "20"))
			over := make(chan struct{})
			go func() {
				defer close(over)
				rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), ReadTimeout: patience, MaxRetries: -1})
				defer func() { _ = rdb.Close() }()
				_ = rdb.Eval(context.Background(), "while true do end", nil).Err() // it is killed
			}()
			soon(t, patience, "Redis to be busy", func() bool {
				_, err := srv.Do("PING")
				return err != nil && strings.HasPrefix(err.Error(), "BUSY")
			})
			return client(srv), func() {
				do(t, srv, "SCRIPT", "KILL")
				received(t, over, patience, "the script to end")
			}
		},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			client, mend := break_(t)
			ctx := t.Context()
			open := seedSem(t, client(), time.Minute, 2)
			closed := fullSem(t, client(), 2, nil)
			named := false
			for range 3 {
				if r := open.TryAcquire(ctx, "down"); !r.FailedOpen() {
					t.Fatalf("%+v, want to fail open", r)
				}
				_, err := closed.Try(ctx, "down")
				if !errors.Is(err, gotsem.ErrUnavailable) || errors.Is(err, gotsem.ErrFull) {
					t.Fatalf("%v, want ErrUnavailable because of %s", err, code)
				}
				named = named || strings.Contains(err.Error(), code)
			}
			if !named {
				t.Errorf("no error names %s", code)
			}
			mend()
			soon(t, patience, "calls to count again", func() bool {
				r := open.TryAcquire(ctx, "down")
				if r.Acquired {
					open.Release(ctx, "down", r.SlotID)
				}
				return r.Acquired && !r.FailedOpen()
			})
			soon(t, patience, "leases to be granted again", func() bool {
				l, err := closed.Try(ctx, "down")
				if err == nil {
					err = l.Release(ctx)
				}
				return err == nil
			})
		})
	}
}

// A Redis that is misconfigured is loud, and admits nobody in silence, whatever the
// policy.
func TestConfigurationErrorsAreLoud(t *testing.T) {
	srv := redistest.Start(t)
	locked := redistest.Start(t, redistest.WithArgs("--requirepass", "secret"))
	do(t, srv, "ACL", "SETUSER", "feeble", "on", ">pw", "~*", "&*", "+@all", "-eval", "-evalsha")
	do(t, srv, "ACL", "SETUSER", "elsewhere", "on", ">pw", "~other:*", "&*", "+@all")
	do(t, srv, "SET", prefix+"config", "not a sorted set")
	for code, options := range map[string]redis.Options{
		"WRONGTYPE":          {Addr: srv.Addr()},
		"NOAUTH":             {Addr: locked.Addr()},
		"WRONGPASS":          {Addr: srv.Addr(), Username: "feeble", Password: "wrong"},
		"NOPERM":             {Addr: srv.Addr(), Username: "feeble", Password: "pw"},
		"NOPERM (elsewhere)": {Addr: srv.Addr(), Username: "elsewhere", Password: "pw"},
	} {
		t.Run(code, func(t *testing.T) {
			client := func() redis.UniversalClient {
				o := options
				rdb := redis.NewClient(&o)
				t.Cleanup(func() { _ = rdb.Close() })
				return rdb
			}
			ctx := t.Context()
			sem, logs := loudSem(t, client(), time.Minute, 5)
			code, _, _ := strings.Cut(code, " ")
			for range 10 {
				if r := sem.TryAcquire(ctx, "config"); r.Acquired || r.SlotID != "" {
					t.Fatalf("%+v: it fails open in silence", r)
				}
			}
			if n := sem.ActiveCount(ctx, "config"); n != 0 {
				t.Errorf("%d active", n)
			}
			said := 0
			for _, e := range logs.All() {
				if e.Level == zapcore.ErrorLevel && strings.Contains(fmt.Sprint(e.ContextMap()), code) {
					said++
				}
			}
			if said != 1 {
				t.Errorf("%d lines name %s, want 1 and not one a call: %v", said, code, logs.All())
			}
			if s := sem.Stats(); s.Down || s.FailedOpen != 0 {
				t.Errorf("it was taken for an outage: %+v", s)
			}
			for _, policy := range []gotsem.Outage{gotsem.Open, gotsem.Closed, gotsem.Local} {
				full := fullSem(t, client(), 5, func(o *gotsem.Options) { o.Outage = policy })
				_, err := full.Acquire(ctx, "config")
				if err == nil || errors.Is(err, gotsem.ErrUnavailable) || errors.Is(err, gotsem.ErrFull) || !strings.Contains(err.Error(), code) {
					t.Errorf("%v: %v, want an error that names %s and is neither an outage nor full", policy, err, code)
				}
			}
			if code == "WRONGTYPE" { // one id's bad luck is its own
				if r := sem.TryAcquire(ctx, "other"); !r.Acquired || r.FailedOpen() {
					t.Errorf("another id: %+v", r)
				}
			}
		})
	}
}

// What a call costs while Redis is known to be down.
func BenchmarkBreakerOpen(b *testing.B) {
	relay := redistest.Blackhole(b)
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
	b.Cleanup(func() { _ = rdb.Close() })
	sem := gotsem.NewGotsem(rdb, prefix, time.Minute, 10, nil, nil)
	b.Cleanup(func() { _ = sem.Close() })
	ctx := context.Background()
	for !sem.Stats().Down {
		sem.TryAcquire(ctx, "down")
	}
	b.ReportAllocs()
	for b.Loop() {
		if r := sem.TryAcquire(ctx, "down"); !r.FailedOpen() {
			b.Fatalf("%+v", r)
		}
	}
}
