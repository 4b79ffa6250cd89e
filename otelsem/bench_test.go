package otelsem_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/otelsem"
	"github.com/ashfaqjani916/gotsem/promsem"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// BenchmarkPairs is what being told costs: acquire and release by a semaphore that nobody
// observes, by one with promsem, by one with otelsem, and by one with that
// WithoutStoreDuration, in turn and in changing order. promsem/bare and so on are pairs a
// second in proportion to those of the first: the median of all rounds, since others use this machine too.
func BenchmarkPairs(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("redis/callers=%d", callers), func(b *testing.B) {
			rdb := redistest.Start(b).Client()
			pairs(b, callers, func() store.Store { return redisstore.New(rdb, "sem:") })
		})
		b.Run(fmt.Sprintf("memory/callers=%d", callers), func(b *testing.B) {
			pairs(b, callers, func() store.Store { return memstore.New() })
		})
	}
}

func pairs(b *testing.B, callers int, open func() store.Store) {
	const names = 4
	var sems [names]*gotsem.Semaphore
	for i := range sems {
		sems[i] = semaphore(b, gotsem.Options{Store: open(), Limit: 1000})
	}
	must(b)(promsem.Register(prometheus.NewRegistry(), sems[1], "bench"))
	for i, opts := range [][]otelsem.Option{nil, {otelsem.WithoutStoreDuration()}} {
		reader, err := exporter.New(exporter.WithRegisterer(prometheus.NewRegistry()))
		if err != nil {
			b.Fatal(err)
		}
		must(b)(otelsem.Register(sems[2+i], "bench", append(opts, otelsem.WithTracerProvider(trace.NewTracerProvider()),
			otelsem.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))))...))
	}
	round := func(sem *gotsem.Semaphore, n int) time.Duration {
		began := time.Now()
		var all sync.WaitGroup
		for c := range callers {
			all.Go(func() {
				ctx, id := context.Background(), fmt.Sprint("id", c)
				for range n {
					l, err := sem.Try(ctx, id)
					if err == nil {
						err = l.Release(ctx)
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		return time.Since(began)
	}
	for _, sem := range sems {
		round(sem, 100)
	}
	each := 1 + 1000/callers // short rounds: what else the machine does falls on all alike
	var shares [names][]float64
	var bare []float64
	for rounds := 0; b.Loop(); rounds++ {
		var took [names]time.Duration
		for i := range names {
			which := (i + rounds) % names
			took[which] = round(sems[which], each)
		}
		bare = append(bare, float64(took[0].Nanoseconds())/float64(each*callers))
		for i := range shares {
			shares[i] = append(shares[i], took[0].Seconds()/took[i].Seconds())
		}
	}
	b.ReportMetric(median(shares[1]), "promsem/bare")
	b.ReportMetric(median(shares[2]), "otelsem/bare")
	b.ReportMetric(median(shares[3]), "otelsem-without/bare")
	b.ReportMetric(median(bare), "bare-ns/pair")
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}
