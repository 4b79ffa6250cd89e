package faults

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// What a call costs in an outage: TryAcquire, the first one and those after the breaker
// has opened, beside a plain call of a go-redis client at its default options.

// LatencyRow is one kind of outage.
type LatencyRow struct {
	Outage string
	First  time.Duration // the first TryAcquire
	Until  int           // how many were asked until the breaker was open
	Open   Quantiles     // after that
	Plain  time.Duration // one ZADD by the plain client
	Err    string        // what it said
}

// Quantiles of many calls.
type Quantiles struct {
	N             int
	P50, P99, Max time.Duration
}

func quantiles(all []time.Duration) Quantiles {
	slices.Sort(all)
	n := len(all)
	if n == 0 {
		return Quantiles{}
	}
	return Quantiles{n, all[n/2], all[min(n-1, n*99/100)], all[n-1]}
}

// Latency measures all kinds of outage, the healthy server first. plain is the most
// that one call of the plain client is waited for.
func Latency(tb redistest.TB, plain time.Duration) []LatencyRow {
	kinds := []struct {
		name  string
		cause func(srv *redistest.Server, relay *redistest.Relay)
	}{
		{"none", func(*redistest.Server, *redistest.Relay) {}},
		{"port refused (kill -9)", func(srv *redistest.Server, relay *redistest.Relay) { srv.Kill(); relay.Refuse(true); relay.CutAll() }},
		{"server stopped (SIGSTOP)", func(srv *redistest.Server, _ *redistest.Relay) { srv.Stop() }},
		{"CLIENT PAUSE", func(srv *redistest.Server, _ *redistest.Relay) { say(srv, "CLIENT", "PAUSE", 300_000, "ALL") }},
		{"packets vanish (black hole)", func(_ *redistest.Server, relay *redistest.Relay) { relay.Blackhole(true) }},
		{"connections half-open", func(_ *redistest.Server, relay *redistest.Relay) { relay.FreezeExisting(); relay.Refuse(true) }},
		{"READONLY", func(srv *redistest.Server, _ *redistest.Relay) { say(srv, "REPLICAOF", "127.0.0.1", "1") }},
		{"OOM", func(srv *redistest.Server, _ *redistest.Relay) { say(srv, "CONFIG", "SET", "maxmemory", "1") }},
	}
	var rows []LatencyRow
	for _, k := range kinds {
		srv := redistest.Start(tb)
		relay := redistest.NewRelay(tb, srv.Addr())
		rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
		other := redis.NewClient(&redis.Options{Addr: relay.Addr()})
		tb.Cleanup(func() { _ = rdb.Close(); _ = other.Close() })
		sem := gotsem.NewGotsem(rdb, "latency:", time.Minute, 1_000_000, nil, nil)
		ctx := context.Background()
		for i := range 20 { // connections are there, and warm
			sem.TryAcquire(ctx, "id")
			other.ZAdd(ctx, "plain", redis.Z{Score: 1, Member: i})
		}
		k.cause(srv, relay)
		row := LatencyRow{Outage: k.name}
		call := func() time.Duration {
			began := time.Now()
			sem.TryAcquire(ctx, "id")
			return time.Since(began)
		}
		row.First, row.Until = call(), 1
		for began := time.Now(); k.name != "none" && !sem.Stats().Down && time.Since(began) < 10*time.Second; row.Until++ {
			call()
		}
		all := make([]time.Duration, 5000)
		for i := range all {
			all[i] = call()
		}
		row.Open = quantiles(all)
		bounded, cancel := context.WithTimeout(ctx, plain)
		answered := make(chan error, 1)
		began := time.Now()
		go func() { answered <- other.ZAdd(bounded, "plain", redis.Z{Score: 1, Member: "x"}).Err() }()
		select {
		case err := <-answered:
			row.Plain = time.Since(began)
			if err != nil {
				row.Err = err.Error()
			}
		case <-time.After(plain + 30*time.Second):
			row.Plain, row.Err = time.Since(began), "given up"
		}
		cancel()
		rows = append(rows, row)
		if k.name == "server stopped (SIGSTOP)" {
			srv.Cont()
		}
		relay.Blackhole(false)
	}
	return rows
}

// WriteLatency writes the rows as markdown.
func WriteLatency(w io.Writer, rows []LatencyRow) {
	_, _ = fmt.Fprintf(w, "| outage | first TryAcquire | calls until the breaker opened | then p50 | p99 | max | plain ZADD, go-redis defaults |\n|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		until := fmt.Sprint(r.Until)
		if r.Outage == "none" {
			until = "–"
		}
		what := r.Plain.Round(10 * time.Microsecond).String()
		if r.Err != "" {
			what += " (an error)"
		}
		_, _ = fmt.Fprintf(w, "| %s | %v | %s | %v | %v | %v | %s |\n", r.Outage, r.First.Round(10*time.Microsecond), until, r.Open.P50, r.Open.P99, r.Open.Max.Round(time.Microsecond), what)
	}
}
