//go:build unix

package integration

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
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
