package server

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// metrics are what /metrics tells. No label is chosen by a caller.
type metrics struct {
	server   *Server
	registry *prometheus.Registry
	captures *prometheus.HistogramVec
}

// browserCounts is what a browser.Browser can tell beside its captures.
type browserCounts interface {
	Ended() map[string]uint64
}

var (
	descRequests = prometheus.NewDesc("screenshotd_requests_total", "Requests for captures, by what the door said to them.", []string{"verdict"}, nil)
	descHeld     = prometheus.NewDesc("screenshotd_slots_in_use", "Slots held by captures.", []string{"semaphore"}, nil)
	descWaiting  = prometheus.NewDesc("screenshotd_waiting", "Captures that wait in line.", []string{"semaphore"}, nil)
	descLost     = prometheus.NewDesc("screenshotd_slots_lost_total", "Slots that were lost before they were released.", []string{"semaphore"}, nil)
	descDown     = prometheus.NewDesc("screenshotd_store_down", "1 while the store of the semaphore cannot be asked.", []string{"semaphore"}, nil)
	descEnded    = prometheus.NewDesc("screenshotd_browser_ended_total", "Browsers that ended, by how.", []string{"how"}, nil)
)

func newMetrics(s *Server) *metrics {
	m := &metrics{
		server:   s,
		registry: prometheus.NewRegistry(),
		captures: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "screenshotd_capture_seconds",
			Help:    "How long captures held their slot, by how they ended.",
			Buckets: []float64{.1, .2, .5, 1, 2, 5, 10, 20, 60},
		}, []string{"outcome"}),
	}
	m.registry.MustRegister(m, m.captures, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

func (m *metrics) captured(outcome string, took time.Duration) {
	m.captures.WithLabelValues(outcome).Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descRequests, descHeld, descWaiting, descLost, descDown, descEnded} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), label)
	}
	gauge := func(d *prometheus.Desc, n int, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), label)
	}
	door, more := m.server.shed.Stats(), m.server.more.Stats()
	count(descRequests, door.Admitted, "admitted")
	count(descRequests, door.ClientGone, "client gone")
	for _, v := range []struct {
		reason httpshed.Reason
		n      uint64
	}{
		{httpshed.Full, door.Full + more.Full}, {httpshed.LineFull, door.LineFull},
		{httpshed.WaitedTooLong, door.WaitedTooLong}, {httpshed.ServerFull, door.ServerFull + more.ServerFull},
		{httpshed.TooHeavy, door.TooHeavy + more.TooHeavy}, {httpshed.Unavailable, door.Unavailable + more.Unavailable},
		{httpshed.Recovering, door.Recovering + more.Recovering},
	} {
		count(descRequests, v.n, v.reason.String())
	}
	for name, st := range m.server.semaphores() {
		gauge(descHeld, st.Held, name)
		gauge(descWaiting, st.Waiting, name)
		count(descLost, st.Lost, name)
		down := 0
		if st.Down {
			down = 1
		}
		gauge(descDown, down, name)
	}
	if b, ok := m.server.opt.Browser.(browserCounts); ok {
		for how, n := range b.Ended() {
			count(descEnded, n, how)
		}
	}
}

// semaphores are the counts of each, by whose it is.
func (s *Server) semaphores() map[string]gotsem.Stats {
	if s.opt.Local == nil {
		return map[string]gotsem.Stats{"server": s.opt.Semaphore.Stats()}
	}
	return map[string]gotsem.Stats{"fleet": s.opt.Semaphore.Stats(), "server": s.opt.Local.Stats()}
}
