package promsem

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ashfaqjani916/gotsem/httpshed"
)

// Shedder is an httpshed.Shedder, or a grpcshed.Shedder.
type Shedder interface{ Stats() httpshed.Stats }

// RegisterShedder shows what a Shedder says at its door, under a name that tells it from
// others.
func RegisterShedder(at prometheus.Registerer, shed Shedder, name string) (stop func(), err error) {
	if name == "" {
		return nil, fmt.Errorf("promsem: the name is empty: it tells this Shedder from the others")
	}
	labels := prometheus.Labels{"gotsem_shed": name}
	c := &shedder{
		shed:        shed,
		requests:    prometheus.NewDesc("gotsem_shed_requests_total", "Requests, by what they were told.", []string{"gotsem_verdict"}, labels),
		active:      prometheus.NewDesc("gotsem_shed_active", "Requests that hold a slot.", nil, labels),
		connections: prometheus.NewDesc("gotsem_shed_connections_total", "Connections of refused requests, by what became of them.", []string{"gotsem_fate"}, labels),
	}
	if err := at.Register(c); err != nil {
		return nil, fmt.Errorf("promsem: %q: %w", name, err)
	}
	return func() { at.Unregister(c) }, nil
}

type shedder struct {
	shed                          Shedder
	requests, active, connections *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *shedder) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.requests
	ch <- c.active
	ch <- c.connections
}

// Collect implements prometheus.Collector.
func (c *shedder) Collect(ch chan<- prometheus.Metric) {
	s := c.shed.Stats()
	for _, v := range []struct {
		verdict string
		n       uint64
	}{
		{"admitted", s.Admitted}, {"skipped", s.Skipped}, {"full", s.Full}, {"line_full", s.LineFull},
		{"waited_too_long", s.WaitedTooLong}, {"server_full", s.ServerFull}, {"too_heavy", s.TooHeavy},
		{"bad_request", s.BadRequest}, {"unavailable", s.Unavailable}, {"recovering", s.Recovering},
		{"server_fault", s.ServerFault}, {"client_gone", s.ClientGone}, {"shadowed", s.Shadowed},
	} {
		ch <- prometheus.MustNewConstMetric(c.requests, prometheus.CounterValue, float64(v.n), v.verdict)
	}
	ch <- prometheus.MustNewConstMetric(c.active, prometheus.GaugeValue, float64(s.Held))
	for _, v := range []struct {
		fate string
		n    uint64
	}{{"closed", s.Closed}, {"spared", s.Spared}, {"cut", s.Cut}} {
		ch <- prometheus.MustNewConstMetric(c.connections, prometheus.CounterValue, float64(v.n), v.fate)
	}
}
