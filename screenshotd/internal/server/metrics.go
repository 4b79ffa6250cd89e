package server

import (
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/promsem"
)

// metrics are what /metrics tells: of the semaphores and the door what promsem shows, and
// of captures and browsers what is only known here. No label is chosen by a caller.
type metrics struct {
	server   *Server
	registry *prometheus.Registry
	captures *prometheus.HistogramVec
}

// browserCounts is what a browser.Browser can tell beside its captures.
type browserCounts interface {
	Ended() map[string]uint64
}

var descEnded = prometheus.NewDesc("screenshotd_browser_ended_total", "Browsers that ended, by how.", []string{"how"}, nil)

func newMetrics(s *Server) (*metrics, error) {
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
	var errs []error
	for name, sem := range s.semaphores() {
		_, err := promsem.Register(m.registry, sem, name)
		errs = append(errs, err)
	}
	_, err := promsem.RegisterShedder(m.registry, s.shed, "capture")
	errs = append(errs, err)
	if s.more != nil {
		_, err = promsem.RegisterShedder(m.registry, s.more, "more")
		errs = append(errs, err)
	}
	return m, errors.Join(errs...)
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

func (m *metrics) captured(outcome string, took time.Duration) {
	m.captures.WithLabelValues(outcome).Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) { ch <- descEnded }

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	if b, ok := m.server.opt.Browser.(browserCounts); ok {
		for how, n := range b.Ended() {
			ch <- prometheus.MustNewConstMetric(descEnded, prometheus.CounterValue, float64(n), how)
		}
	}
}

// semaphores are the server's, by whose slots they keep.
func (s *Server) semaphores() map[string]*gotsem.Semaphore {
	if s.opt.Local == nil {
		return map[string]*gotsem.Semaphore{"server": s.opt.Semaphore}
	}
	return map[string]*gotsem.Semaphore{"fleet": s.opt.Semaphore, "server": s.opt.Local}
}
