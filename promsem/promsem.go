// Package promsem shows Prometheus what semaphores and Shedders do.
//
//	stop, err := promsem.Register(prometheus.DefaultRegisterer, sem, "captures")
//
// Counters and gauges are read from Stats when Prometheus asks; the histograms are told
// by Semaphore.Observe. No owner or error text is ever a label, and an id only if
// RegisterIDs names it: their number is not bounded. Package otelsem has the same metrics
// for OpenTelemetry; docs/metrics.md lists them.
package promsem

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/tally"
)

// nameLabel is which semaphore: a name that was given when it was registered.
const nameLabel = "gotsem_semaphore"

// Collector is one semaphore's metrics, a prometheus.Collector.
type Collector struct {
	sem  *gotsem.Semaphore
	stop func()

	told               tally.Acquires
	wait, lease, store histograms

	acquires, active, waiting, oldest, pending, renewals, restorations, retaken, lapsed *prometheus.Desc
	losses, status, outages, errors                                                     *prometheus.Desc
}

// New returns the metrics of sem under that name, which tells it from the others that
// are registered at the same place. It observes sem until Close.
func New(sem *gotsem.Semaphore, name string) *Collector {
	labels := prometheus.Labels{nameLabel: name}
	desc := func(metric, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc(metric, help, variable, labels)
	}
	c := &Collector{
		sem:          sem,
		acquires:     desc("gotsem_acquires_total", "Calls of Try, Acquire and TryAcquire, by how they ended and by who said so.", "gotsem_outcome", "gotsem_source"),
		wait:         histograms{desc: desc("gotsem_wait_duration_seconds", "How long calls waited that stood in line, by how that ended.", "gotsem_outcome")},
		lease:        histograms{desc: desc("gotsem_lease_duration_seconds", "How long leases were held, by how they ended.", "gotsem_end")},
		store:        histograms{desc: desc("gotsem_store_duration_seconds", "How long calls to the store took.", "gotsem_operation", "error_type")},
		active:       desc("gotsem_lease_active", "Leases that this process holds."),
		waiting:      desc("gotsem_waiter_active", "Calls of this process that wait in line."),
		oldest:       desc("gotsem_waiter_age_seconds", "How long the first of the calls of this process that wait in line has waited."),
		pending:      desc("gotsem_release_pending", "Slots that nobody uses and the store was not told of yet."),
		renewals:     desc("gotsem_lease_renewals_total", "Renewals that were sent."),
		restorations: desc("gotsem_lease_restorations_total", "Leases that the store had forgotten, and has again."),
		retaken:      desc("gotsem_level_retakes_total", "Ids of a call for several that were lost while it waited for a further one, and asked for again."),
		lapsed:       desc("gotsem_release_dropped_total", "Slots that could not be released, and were left to lapse."),
		losses:       desc("gotsem_lease_losses_total", "Leases that ended before they were released, by why.", "gotsem_reason"),
		status:       desc("gotsem_store_status", "1 for the state that the store, or one server of it, is in, and 0 for the other.", "gotsem_store_state"),
		outages:      desc("gotsem_store_outages_total", "Times that the store, or one server of it, was given up for a while."),
		errors:       desc("gotsem_store_errors_total", "Calls to the store that failed."),
	}
	for o := gotsem.Granted; o <= gotsem.Invalid; o++ {
		c.wait.add(tally.WaitBounds, o.String())
	}
	for w := gotsem.Released; w <= gotsem.ByClose; w++ {
		c.lease.add(tally.LeaseBounds, w.String())
	}
	for _, operation := range tally.Operations {
		for _, errorType := range tally.ErrorTypes {
			c.store.add(tally.StoreBounds, operation, errorType)
		}
	}
	c.stop = sync.OnceFunc(sem.Observe(&gotsem.Observer{
		Answered: func(_ context.Context, a gotsem.Answer) {
			c.told.Add(a.Outcome, a.Source)
			if a.Queued {
				c.wait.count(int(a.Outcome), a.Waited)
			}
		},
		Ended: func(_ context.Context, e gotsem.End) {
			if e.Held > 0 {
				c.lease.count(int(e.Why), e.Held)
			}
		},
		Called: func(call gotsem.Call) {
			if n, ok := tally.CallSeries(call.Operation, call.ErrorType()); ok {
				c.store.count(n, call.Took)
			}
		},
	}))
	return c
}

// histograms are the series of one metric, each for some values of its labels. Those that
// counted nothing are not shown.
type histograms struct {
	desc   *prometheus.Desc
	all    []*tally.Histogram
	labels [][]string
}

func (h *histograms) add(bounds []float64, labels ...string) {
	h.all, h.labels = append(h.all, tally.NewHistogram(bounds)), append(h.labels, labels)
}

// count counts d in the series that was added as the nth.
func (h *histograms) count(n int, d time.Duration) {
	if n < len(h.all) {
		h.all[n].Add(d)
	}
}

func (h *histograms) collect(ch chan<- prometheus.Metric) {
	for i, one := range h.all {
		if n, sum, upTo := one.Read(); n > 0 {
			ch <- prometheus.MustNewConstHistogram(h.desc, n, sum, upTo, h.labels[i]...)
		}
	}
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
	for _, d := range []*prometheus.Desc{c.wait.desc, c.lease.desc, c.store.desc,
		c.acquires, c.active, c.waiting, c.oldest, c.pending, c.renewals, c.restorations, c.retaken, c.lapsed, c.losses, c.status, c.outages, c.errors} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It asks nobody.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, h := range []*histograms{&c.wait, &c.lease, &c.store} {
		h.collect(ch)
	}
	s := c.sem.Stats()
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for n := range c.told.All() {
		counter(c.acquires, n.N, n.Outcome.String(), n.Source.String())
	}
	gauge(c.active, s.Held)
	gauge(c.waiting, s.Waiting)
	ch <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, s.OldestWait.Seconds())
	gauge(c.pending, s.Pending)
	counter(c.renewals, s.Renewals)
	counter(c.restorations, s.Restored)
	counter(c.retaken, s.Retaken)
	counter(c.lapsed, s.LeftToLapse)
	for _, l := range tally.Losses(s) {
		counter(c.losses, l.N, l.Reason)
	}
	down := 0
	if s.Down {
		down = 1
	}
	gauge(c.status, down, "down")
	gauge(c.status, 1-down, "up")
	counter(c.outages, s.Outages)
	counter(c.errors, s.StoreErrors)
}
