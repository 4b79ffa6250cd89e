//go:build unix

package integration

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// BenchmarkLevels measures pairs of Try and Release of 1, 2, 3 and 5 ids on one Redis: from
// one goroutine, refused at the last id, and from 256 goroutines. server-µs is what a pair
// costs the server in scripts, by its own count.
func BenchmarkLevels(b *testing.B) {
	srv := redistest.Start(b)
	sem := fullSem(b, srv.Client(), 1<<20, nil)
	ctx := context.Background()
	if err := sem.SetLimit(ctx, "full", 1); err != nil {
		b.Fatal(err)
	}
	if _, err := sem.Try(ctx, "full"); err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1, 2, 3, 5} {
		opts := make([]gotsem.Option, 0, n)
		for i := 1; i < n; i++ {
			opts = append(opts, gotsem.Also(fmt.Sprint("level", i)))
		}
		pair := func(b *testing.B) {
			l, err := sem.Try(ctx, "level0", opts...)
			if err != nil {
				b.Fatal(err)
			}
			if err := l.Release(ctx); err != nil {
				b.Fatal(err)
			}
		}
		name := fmt.Sprint("ids=", n)
		b.Run(name+"/alone", func(b *testing.B) {
			counted(b, srv, func() {
				for b.Loop() {
					pair(b)
				}
			})
		})
		b.Run(name+"/refused", func(b *testing.B) {
			id, last := "full", []gotsem.Option(nil)
			if n > 1 {
				id, last = "level0", append(opts[:n-2:n-2], gotsem.Also("full"))
			}
			counted(b, srv, func() {
				for b.Loop() {
					if _, err := sem.Try(ctx, id, last...); err == nil {
						b.Fatal("not refused")
					}
				}
			})
		})
		b.Run(name+"/256", func(b *testing.B) {
			b.SetParallelism(128) // times two processors
			counted(b, srv, func() {
				b.RunParallel(func(p *testing.PB) {
					for p.Next() {
						pair(b)
					}
				})
			})
		})
	}
}

// BenchmarkJoint measures the same by one script for one id and for several, below the
// semaphore: what a further id costs the server.
func BenchmarkJoint(b *testing.B) {
	srv := redistest.Start(b)
	st := redisstore.New(srv.Client(), "joint:")
	b.Cleanup(func() { _ = st.Close() })
	ctx := context.Background()
	for _, n := range []int{1, 2, 3, 5} {
		slot := ""
		ask := func(b *testing.B, last int) []store.Decision {
			slot = st.Stamp() + "12345678901234"
			rs := make([]*store.Request, n)
			for i := range rs {
				rs[i] = &store.Request{ID: fmt.Sprint("level", i), SlotID: slot, Weight: 1, Limit: 9, TTL: time.Minute, Grace: time.Minute, Owner: "bench", FirstAttempt: true}
			}
			rs[n-1].Limit = last
			ds, err := st.AcquireAll(ctx, rs)
			if err != nil {
				b.Fatal(err)
			}
			return ds
		}
		b.Run(fmt.Sprint("ids=", n, "/alone"), func(b *testing.B) {
			counted(b, srv, func() {
				for b.Loop() {
					if ds := ask(b, 9); ds[n-1].Outcome != store.Granted {
						b.Fatalf("%+v", ds)
					}
					for i := range n {
						if _, err := st.Release(ctx, &store.Release{ID: fmt.Sprint("level", i), SlotID: slot, Grace: time.Minute}); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		})
		b.Run(fmt.Sprint("ids=", n, "/refused"), func(b *testing.B) {
			counted(b, srv, func() {
				for b.Loop() {
					if ds := ask(b, 0); ds[n-1].Outcome != store.Full {
						b.Fatalf("%+v", ds)
					}
				}
			})
		})
	}
}

// counted reports what run costs the server in scripts.
func counted(b *testing.B, srv *redistest.Server, run func()) {
	do(b, srv, "CONFIG", "RESETSTAT")
	run()
	var micros float64
	for name, value := range srv.Info("commandstats") {
		if strings.HasPrefix(name, "cmdstat_eval") {
			for field := range strings.SplitSeq(value, ",") {
				if text, ok := strings.CutPrefix(field, "usec="); ok {
					n, err := strconv.ParseFloat(text, 64)
					if err != nil {
						b.Fatal(err)
					}
					micros += n
				}
			}
		}
	}
	b.ReportMetric(micros/float64(b.N), "server-µs/op")
}
