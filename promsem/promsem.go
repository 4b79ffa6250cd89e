// Package promsem shows Prometheus what semaphores and Shedders do.
//
//	stop, err := promsem.Register(prometheus.DefaultRegisterer, sem, "captures")
//
// Counters and gauges are read from Stats when Prometheus asks; the histograms are told
// by Semaphore.Observe. No id, owner or error text is ever a label: their number is not
// bounded.
package promsem

import (
	"context"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ashfaqjani916/gotsem"
)

// Bounds of the histograms, in seconds.
var (
	waitBuckets  = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	leaseBuckets = []float64{.01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600}
	storeBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}
)

// nameLabel is which semaphore: a name that was given when it was registered.
const nameLabel = "gotsem_semaphore"

// Collector is one semaphore's metrics, a prometheus.Collector.
type Collector struct {
	sem  *gotsem.Semaphore
	stop func()

	acquires    *prometheus.CounterVec
	wait, lease *prometheus.HistogramVec
	store       *prometheus.HistogramVec

	active, waiting, renewals, restorations, retaken, lapsed *prometheus.Desc
	losses, status, outages, errors                          *prometheus.Desc
}

// New returns the metrics of sem under that name, which tells it from the others that
// are registered at the same place. It observes sem until Close.
func New(sem *gotsem.Semaphore, name string) *Collector {
	labels := prometheus.Labels{nameLabel: name}
	desc := func(metric, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc(metric, help, variable, labels)
	}
	histogram := func(metric, help string, buckets []float64, variable ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metric, Help: help, Buckets: buckets, ConstLabels: labels}, variable)
	}
	c := &Collector{
		sem: sem,
		acquires: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gotsem_acquires_total", Help: "Calls of Try, Acquire and TryAcquire, by how they ended and by who said so.", ConstLabels: labels,
		}, []string{"gotsem_outcome", "gotsem_source"}),
		wait:         histogram("gotsem_wait_duration_seconds", "How long calls waited that stood in line, by how that ended.", waitBuckets, "gotsem_outcome"),
		lease:        histogram("gotsem_lease_duration_seconds", "How long leases were held, by how they ended.", leaseBuckets, "gotsem_end"),
		store:        histogram("gotsem_store_duration_seconds", "How long calls to the store took.", storeBuckets, "gotsem_operation", "error_type"),
		active:       desc("gotsem_lease_active", "Leases that this process holds."),
		waiting:      desc("gotsem_waiter_active", "Calls of this process that wait in line."),
		renewals:     desc("gotsem_lease_renewals_total", "Renewals that were sent."),
		restorations: desc("gotsem_lease_restorations_total", "Leases that the store had forgotten, and has again."),
		retaken:      desc("gotsem_level_retakes_total", "Ids of a call for several that were lost while it waited for a further one, and asked for again."),
		lapsed:       desc("gotsem_release_dropped_total", "Slots that could not be released, and were left to lapse."),
		losses:       desc("gotsem_lease_losses_total", "Leases that ended before they were released, by why.", "gotsem_reason"),
		status:       desc("gotsem_store_status", "1 for the state that the store, or one server of it, is in, and 0 for the other.", "gotsem_store_state"),
		outages:      desc("gotsem_store_outages_total", "Times that the store, or one server of it, was given up for a while."),
		errors:       desc("gotsem_store_errors_total", "Calls to the store that failed."),
	}
	for o := gotsem.Granted; o <= gotsem.Invalid; o++ { // a series that begins at 0 shows its first increase
		c.acquires.WithLabelValues(o.String(), gotsem.FromStore.String())
	}
	for _, source := range []gotsem.Source{gotsem.FromLocal, gotsem.FromOpen} {
		c.acquires.WithLabelValues(gotsem.Granted.String(), source.String())
	}
	c.acquires.WithLabelValues(gotsem.Full.String(), gotsem.FromMemory.String())
	c.stop = sync.OnceFunc(sem.Observe(&gotsem.Observer{
		Answered: func(_ context.Context, a gotsem.Answer) {
			c.acquires.WithLabelValues(a.Outcome.String(), a.Source.String()).Inc()
			if a.Queued {
				c.wait.WithLabelValues(a.Outcome.String()).Observe(a.Waited.Seconds())
			}
		},
		Ended: func(_ context.Context, e gotsem.End) {
			if e.Held > 0 {
				c.lease.WithLabelValues(e.Why.String()).Observe(e.Held.Seconds())
			}
		},
		Called: func(call gotsem.Call) {
			failed := ""
			if call.Err != nil {
				failed = "error"
			}
			c.store.WithLabelValues(call.Operation, failed).Observe(call.Took.Seconds())
		},
	}))
	return c
}

// Close ends the observation. The metrics stay as they are.
func (c *Collector) Close() { c.stop() }

// Register is New, and has it registered. A name that is registered already is an error.
// stop takes it out again.
func Register(at prometheus.Registerer, sem *gotsem.Semaphore, name string) (stop func(), err error) {
	if name == "" {
		return nil, fmt.Errorf("promsem: the name is empty: it tells this semaphore from the others")
	}
	c := New(sem, name)
	if err := at.Register(c); err != nil {
		c.Close()
		return nil, fmt.Errorf("promsem: %q: %w", name, err)
	}
	return func() {
		at.Unregister(c)
		c.Close()
	}, nil
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range []prometheus.Collector{c.acquires, c.wait, c.lease, c.store} {
		v.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{c.active, c.waiting, c.renewals, c.restorations, c.retaken, c.lapsed, c.losses, c.status, c.outages, c.errors} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It asks nobody.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, v := range []prometheus.Collector{c.acquires, c.wait, c.lease, c.store} {
		v.Collect(ch)
	}
	s := c.sem.Stats()
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	gauge(c.active, s.Held)
	gauge(c.waiting, s.Waiting)
	counter(c.renewals, s.Renewals)
	counter(c.restorations, s.Restored)
	counter(c.retaken, s.Retaken)
	counter(c.lapsed, s.LeftToLapse)
	counter(c.losses, s.Revoked, "revoked")
	counter(c.losses, s.Expired, "lapsed")
	counter(c.losses, s.HeldTooLong, "held_too_long")
	counter(c.losses, s.Lost-min(s.Lost, s.Revoked+s.Expired+s.HeldTooLong), "forgotten")
	down := 0
	if s.Down {
		down = 1
	}
	gauge(c.status, down, "down")
	gauge(c.status, 1-down, "up")
	counter(c.outages, s.Outages)
	counter(c.errors, s.StoreErrors)
}
