package main

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// outageTable shows what a call costs in an outage: TryAcquire, the first one and those
// after the breaker has opened, beside a plain call of a go-redis client at its default
// options.
func outageTable(l *lab) (*report, error) {
	redis.SetLogger(silence{}) // connections that fail are what is measured
	r, stop, err := redistest.Launch("bench", func(tb redistest.TB) *report { return outages(tb, l.quick) })
	stop()
	return r, err
}

func outages(tb redistest.TB, quick bool) *report {
	say := func(srv *redistest.Server, args ...any) { _, _ = srv.Do(args...) }
	none := func(*redistest.Server, *redistest.Relay) {}
	kinds := []struct {
		name  string
		cause func(srv *redistest.Server, relay *redistest.Relay)
	}{
		{"none", none},
		{"port refused (kill -9)", func(srv *redistest.Server, relay *redistest.Relay) { srv.Kill(); relay.Refuse(true); relay.CutAll() }},
		{"server stopped (SIGSTOP)", func(srv *redistest.Server, _ *redistest.Relay) { srv.Stop() }},
		{"CLIENT PAUSE", func(srv *redistest.Server, _ *redistest.Relay) { say(srv, "CLIENT", "PAUSE", 300_000, "ALL") }},
		{"packets vanish (black hole)", func(_ *redistest.Server, relay *redistest.Relay) { relay.Blackhole(true) }},
		{"connections half-open", func(_ *redistest.Server, relay *redistest.Relay) { relay.FreezeExisting(); relay.Refuse(true) }},
		{"READONLY", func(srv *redistest.Server, _ *redistest.Relay) { say(srv, "REPLICAOF", "127.0.0.1", "1") }},
		{"OOM", func(srv *redistest.Server, _ *redistest.Relay) { say(srv, "CONFIG", "SET", "maxmemory", "1") }},
	}
	asked, plain := 5000, 2*time.Minute
	if quick {
		kinds, asked, plain = kinds[:3], 500, 300*time.Millisecond
	}
	r := &report{
		head:  []string{"outage", "first TryAcquire, ms", "calls until the breaker opened", "then p50, µs", "p99, µs", "max, µs", "one ZADD at go-redis's defaults, ms"},
		bound: "the first calls wait for `StoreTimeout`. Once the breaker is open a call reads the clock and two counters. The plain client retries and waits by its own options.",
	}
	for _, k := range kinds {
		srv := redistest.Start(tb)
		relay := redistest.NewRelay(tb, srv.Addr())
		rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
		other := redis.NewClient(&redis.Options{Addr: relay.Addr()})
		tb.Cleanup(func() { _ = rdb.Close(); _ = other.Close() })
		sem := gotsem.NewGotsem(rdb, "outage:", time.Minute, 1_000_000, nil, nil)
		for i := range 20 { // connections are there, and warm
			sem.TryAcquire(background, "id")
			other.ZAdd(background, "plain", redis.Z{Score: 1, Member: i})
		}
		k.cause(srv, relay)
		call := func() time.Duration {
			began := time.Now()
			sem.TryAcquire(background, "id")
			return time.Since(began)
		}
		first, until := call(), 1
		for began := time.Now(); k.name != "none" && !sem.Stats().Down && time.Since(began) < 10*time.Second; until++ {
			call()
		}
		all := make([]float64, asked)
		for i := range all {
			all[i] = float64(call().Nanoseconds()) / 1e3
		}
		slices.Sort(all)
		took, failed := outagePlain(other, plain)
		r.add(k.name, number(first.Seconds()*1e3), pick(k.name == "none", "–", strconv.Itoa(until)), number(all[asked/2]), number(all[asked*99/100]), number(all[asked-1]),
			number(took.Seconds()*1e3)+pick(failed, ", an error", ""))
		if k.name == "server stopped (SIGSTOP)" {
			srv.Cont()
		}
		relay.Blackhole(false)
	}
	return r
}

// outagePlain is one call of a client that nobody bounds, waited for at most that long.
func outagePlain(rdb *redis.Client, most time.Duration) (took time.Duration, failed bool) {
	ctx, cancel := context.WithTimeout(background, most)
	defer cancel()
	began := time.Now()
	err := rdb.ZAdd(ctx, "plain", redis.Z{Score: 1, Member: "x"}).Err()
	return time.Since(began), err != nil
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
