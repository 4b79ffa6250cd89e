package otelsem_test

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/otelsem"
)

func ExampleRegister() {
	reader := metric.NewManualReader() // a program has an exporter here
	provider := metric.NewMeterProvider(metric.WithReader(reader))

	sem, err := gotsem.New(gotsem.Options{Limit: 6})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sem.Close()
	stop, err := otelsem.Register(sem, "captures", otelsem.WithMeterProvider(provider))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	ctx := context.Background()
	if _, err := sem.Try(ctx, "browser"); err != nil {
		fmt.Println(err)
		return
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if held, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "gotsem.lease.active" {
			fmt.Println(m.Name, held.DataPoints[0].Value)
		}
	}
	// Output: gotsem.lease.active 1
}

func ExampleWithSpans() {
	spans := tracetest.NewInMemoryExporter() // a program has its tracer's exporter here
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))

	sem, err := gotsem.New(gotsem.Options{Limit: 1, Queue: 10})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sem.Close()
	stop, err := otelsem.Register(sem, "captures", otelsem.WithTracerProvider(provider), otelsem.WithSpans(otelsem.Waits))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	ctx := context.Background()
	lease, err := sem.Acquire(ctx, "browser") // granted at once: no span
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release(ctx)
	_, err = sem.Acquire(ctx, "browser", gotsem.MaxWait(10*time.Millisecond))
	fmt.Println(err != nil)
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name, s.Status.Code)
	}
	// Output:
	// true
	// gotsem.acquire Unset
}

func ExampleRegisterIDs() {
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))

	sem, err := gotsem.New(gotsem.Options{Limit: 6})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sem.Close()
	stop, err := otelsem.RegisterIDs(sem, "captures", []string{"browser"}, otelsem.WithMeterProvider(provider))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if g, ok := m.Data.(metricdata.Gauge[int64]); ok {
			fmt.Println(m.Name, g.DataPoints[0].Value)
		}
	}
	// Output:
	// gotsem.slot.usage 0
	// gotsem.slot.limit 6
	// gotsem.limit.override 0
	// gotsem.line.length 0
}
