// Package otelsem tells OpenTelemetry what semaphores and Shedders do: metrics, and spans
// of the calls that waited.
//
//	stop, err := otelsem.Register(sem, "captures")
//
// It uses the API alone; which SDK and exporter there are, the program decides. Through the
// exporter for Prometheus the metrics have the names and labels of package promsem, which
// docs/metrics.md lists, so that the dashboard and the alerts in deploy serve both.
//
// Counters and gauges are read from Stats when the SDK collects. The histograms and spans
// are told by Semaphore.Observe. No owner or error text is ever an attribute of a metric,
// and an id only if RegisterIDs names it: their number is not bounded.
//
// Where the SDK keeps exemplars, which it does for sampled traces unless it is told
// otherwise, those of gotsem.wait.duration lead to the trace of who waited. They cost
// nothing here: the measurement is made with the call's ctx, and the SDK looks into it or
// does not. The other histograms have none. A call to the store serves many callers, and
// when a lease ends, the span that it was acquired in has ended as a rule.
package otelsem

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/tally"
)

// scope is who measures: the import path.
const scope = "github.com/ashfaqjani916/gotsem/otelsem"

// Option is an option of Register, RegisterShedder or RegisterIDs.
type Option func(*config)

type config struct {
	meters    metric.MeterProvider
	tracers   trace.TracerProvider
	spans     Spans
	withoutID bool
	noTrips   bool
}

// WithMeterProvider says where metrics go, in the place of otel.GetMeterProvider. Nil
// changes nothing.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) {
		if p != nil {
			c.meters = p
		}
	}
}

// WithTracerProvider says where spans go, in the place of otel.GetTracerProvider. Nil
// changes nothing. Only Register makes spans.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) {
		if p != nil {
			c.tracers = p
		}
	}
}

// WithSpans says which calls get a span: Waits, if it is not given.
func WithSpans(s Spans) Option { return func(c *config) { c.spans = s } }

// WithoutID leaves the ids out of spans, where they tell more than a trace should.
func WithoutID() Option { return func(c *config) { c.withoutID = true } }

// WithoutStoreDuration leaves gotsem.store.duration out. It costs more than all else here:
// the SDK takes 150 to 350 ns for each entry of a histogram, and this one has an entry for
// each acquire, renewal and release. docs/metrics.md has what it comes to.
func WithoutStoreDuration() Option { return func(c *config) { c.noTrips = true } }

func configOf(opts []Option) *config {
	c := &config{}
	for _, o := range opts {
		o(c)
	}
	if c.meters == nil {
		c.meters = otel.GetMeterProvider()
	}
	if c.tracers == nil {
		c.tracers = otel.GetTracerProvider()
	}
	return c
}

func (c *config) meter() metric.Meter { return c.meters.Meter(scope) }

// registration is one that is in force. The SDK would sum up two of one name, or keep the
// last: neither is what its name says.
type registration struct {
	meters     metric.MeterProvider
	kind, name string
}

var inForce = struct {
	sync.Mutex
	all map[registration]bool
}{all: make(map[registration]bool)}

// claim takes a name, until leave is called.
func (c *config) claim(kind, name string) (leave func(), err error) {
	if name == "" {
		return nil, fmt.Errorf("otelsem: the name is empty: it tells this %s from the others", kind)
	}
	if !reflect.TypeOf(c.meters).Comparable() { // nobody can say whether it is the same
		return func() {}, nil
	}
	r := registration{c.meters, kind, name}
	inForce.Lock()
	defer inForce.Unlock()
	if inForce.all[r] {
		return nil, fmt.Errorf("otelsem: a %s is registered as %q already at this MeterProvider: give it another name, or stop the other first", kind, name)
	}
	inForce.all[r] = true
	return func() {
		inForce.Lock()
		defer inForce.Unlock()
		delete(inForce.all, r)
	}, nil
}

// instruments makes instruments and collects what went wrong.
type instruments struct {
	meter metric.Meter
	all   []metric.Observable
	errs  []error
}

func (i *instruments) counter(name, unit, description string) metric.Int64ObservableCounter {
	c, err := i.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	i.all, i.errs = append(i.all, c), append(i.errs, err)
	return c
}

// state is an UpDownCounter: what one process sees, which sums up.
func (i *instruments) state(name, unit, description string) metric.Int64ObservableUpDownCounter {
	c, err := i.meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	i.all, i.errs = append(i.all, c), append(i.errs, err)
	return c
}

// gauge is of what all processes see alike, which does not sum up.
func (i *instruments) gauge(name, unit, description string) metric.Int64ObservableGauge {
	c, err := i.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	i.all, i.errs = append(i.all, c), append(i.errs, err)
	return c
}

func (i *instruments) seconds(name, description string) metric.Float64ObservableGauge {
	c, err := i.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description))
	i.all, i.errs = append(i.all, c), append(i.errs, err)
	return c
}

func (i *instruments) histogram(name, description string, bounds []float64) metric.Float64Histogram {
	h, err := i.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
	i.errs = append(i.errs, err)
	return h
}

// collect has read called when the SDK collects, until stop is called.
func (i *instruments) collect(read metric.Callback) (stop func(), err error) {
	if err := errors.Join(i.errs...); err != nil {
		return nil, fmt.Errorf("otelsem: %w", err)
	}
	r, err := i.meter.RegisterCallback(read, i.all...)
	if err != nil {
		return nil, fmt.Errorf("otelsem: %w", err)
	}
	return func() { _ = r.Unregister() }, nil
}

// set is a set of attributes, made once.
func set(of ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(of...))
}

// recorder records in one histogram with one of several sets of attributes, which are made
// once, as are the lists that the API wants.
type recorder struct {
	histogram metric.Float64Histogram
	sets      [][]metric.RecordOption
}

func (r *recorder) add(of ...attribute.KeyValue) {
	r.sets = append(r.sets, []metric.RecordOption{set(of...)})
}

// record records d with the set that was added as the nth.
func (r *recorder) record(ctx context.Context, n int, d time.Duration) {
	if n < len(r.sets) && r.histogram.Enabled(ctx) {
		r.histogram.Record(ctx, d.Seconds(), r.sets[n]...)
	}
}

// Register tells of sem under that name, which tells it from the others, until stop is
// called. The same name twice at one MeterProvider is an error.
//
// The metrics are about 45 series, and about 110 more for the histograms, whatever the
// number of ids.
func Register(sem *gotsem.Semaphore, name string, opts ...Option) (stop func(), err error) {
	c := configOf(opts)
	leave, err := c.claim("semaphore", name)
	if err != nil {
		return nil, err
	}
	var (
		told tally.Acquires
		key  = attribute.String("gotsem.semaphore", name)
		own  = set(key)
		i    = instruments{meter: c.meter()}

		acquires     = i.counter("gotsem.acquires", "{acquire}", "Calls of Try, Acquire and TryAcquire, by how they ended and by who said so.")
		active       = i.state("gotsem.lease.active", "{lease}", "Leases that this process holds.")
		waiting      = i.state("gotsem.waiter.active", "{waiter}", "Calls of this process that wait in line.")
		oldest       = i.seconds("gotsem.waiter.age", "How long the first of the calls of this process that wait in line has waited.")
		pending      = i.state("gotsem.release.pending", "{release}", "Slots that nobody uses and the store was not told of yet.")
		renewals     = i.counter("gotsem.lease.renewals", "{renewal}", "Renewals that were sent.")
		restorations = i.counter("gotsem.lease.restorations", "{lease}", "Leases that the store had forgotten, and has again.")
		retaken      = i.counter("gotsem.level.retakes", "{id}", "Ids of a call for several that were lost while it waited for a further one, and asked for again.")
		dropped      = i.counter("gotsem.release.dropped", "{slot}", "Slots that could not be released, and were left to lapse.")
		losses       = i.counter("gotsem.lease.losses", "{lease}", "Leases that ended before they were released, by why.")
		status       = i.state("gotsem.store.status", "1", "1 for the state that the store, or one server of it, is in, and 0 for the other.")
		outages      = i.counter("gotsem.store.outages", "{outage}", "Times that the store, or one server of it, was given up for a while.")
		failures     = i.counter("gotsem.store.errors", "{error}", "Calls to the store that failed.")

		up, down = set(key, attribute.String("gotsem.store.state", "up")), set(key, attribute.String("gotsem.store.state", "down"))
	)
	wait := recorder{histogram: i.histogram("gotsem.wait.duration", "How long calls waited that stood in line, by how that ended.", tally.WaitBounds)}
	for o := gotsem.Granted; o <= gotsem.Invalid; o++ {
		wait.add(key, attribute.String("gotsem.outcome", o.String()))
	}
	lease := recorder{histogram: i.histogram("gotsem.lease.duration", "How long leases were held, by how they ended.", tally.LeaseBounds)}
	for w := gotsem.Released; w <= gotsem.ByClose; w++ {
		lease.add(key, attribute.String("gotsem.end", w.String()))
	}
	var called func(gotsem.Call)
	if !c.noTrips {
		trips := recorder{histogram: i.histogram("gotsem.store.duration", "How long calls to the store took.", tally.StoreBounds)}
		for _, operation := range tally.Operations {
			for _, errorType := range tally.ErrorTypes {
				of := []attribute.KeyValue{key, attribute.String("gotsem.operation", operation)}
				if errorType != "" {
					of = append(of, attribute.String("error.type", errorType))
				}
				trips.add(of...)
			}
		}
		called = func(c gotsem.Call) {
			if n, ok := tally.CallSeries(c.Operation, c.ErrorType()); ok {
				trips.record(context.Background(), n, c.Took)
			}
		}
	}
	unregister, err := i.collect(func(_ context.Context, to metric.Observer) error {
		for n := range told.All() {
			to.ObserveInt64(acquires, int64(n.N), set(key, attribute.String("gotsem.outcome", n.Outcome.String()), attribute.String("gotsem.source", n.Source.String())))
		}
		s := sem.Stats()
		to.ObserveInt64(active, int64(s.Held), own)
		to.ObserveInt64(waiting, int64(s.Waiting), own)
		to.ObserveFloat64(oldest, s.OldestWait.Seconds(), own)
		to.ObserveInt64(pending, int64(s.Pending), own)
		to.ObserveInt64(renewals, int64(s.Renewals), own)
		to.ObserveInt64(restorations, int64(s.Restored), own)
		to.ObserveInt64(retaken, int64(s.Retaken), own)
		to.ObserveInt64(dropped, int64(s.LeftToLapse), own)
		for _, l := range tally.Losses(s) {
			to.ObserveInt64(losses, int64(l.N), set(key, attribute.String("gotsem.reason", l.Reason)))
		}
		isDown := int64(0)
		if s.Down {
			isDown = 1
		}
		to.ObserveInt64(status, isDown, down)
		to.ObserveInt64(status, 1-isDown, up)
		to.ObserveInt64(outages, int64(s.Outages), own)
		to.ObserveInt64(failures, int64(s.StoreErrors), own)
		return nil
	})
	if err != nil {
		leave()
		return nil, err
	}
	spans := c.spanner(name)
	unobserve := sem.Observe(&gotsem.Observer{
		Answered: func(ctx context.Context, a gotsem.Answer) {
			told.Add(a.Outcome, a.Source)
			if a.Queued {
				wait.record(ctx, int(a.Outcome), a.Waited)
			}
			if spans.wants(a.Queued) {
				spans.answered(ctx, a)
			}
		},
		Ended: func(ctx context.Context, e gotsem.End) {
			if e.Held > 0 {
				lease.record(ctx, int(e.Why), e.Held)
			}
			if e.Why != gotsem.Released {
				spans.ended(ctx, e)
			}
		},
		Called: called,
	})
	return sync.OnceFunc(func() {
		unobserve()
		unregister()
		leave()
	}), nil
}
