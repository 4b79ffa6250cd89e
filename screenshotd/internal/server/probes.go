package server

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem/httpshed"
)

// healthz says that the process answers. It asks nobody.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write([]byte("ok\n"))
}

// readyz says whether work is wanted here. Being full is no reason against it: a
// refusal is fast, and the fleet's balancer would only move the crowd.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if why := s.unready(); why != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(why + "\n"))
		return
	}
	_, _ = w.Write([]byte("ready\n"))
}

// unready is why no work is wanted. Empty: it is.
func (s *Server) unready() string {
	if s.closing.Load() {
		return "shutting down"
	}
	if s.opt.Browser.Failing() != nil {
		return "the browser cannot be started"
	}
	return ""
}

// Pressure is how much there is to do, under the names that screenshot services
// have for it.
type Pressure struct {
	Running          int    `json:"running"` // slots taken on this server
	Queued           int    `json:"queued"`
	MaxConcurrent    int    `json:"maxConcurrent"`
	MaxQueued        int    `json:"maxQueued"`
	RecentlyRejected int    `json:"recentlyRejected"` // in the last minute
	IsAvailable      bool   `json:"isAvailable"`
	Reason           string `json:"reason,omitempty"` // why it is not

	// Fleet is how the semaphore stands that the fleet shares.
	Fleet *FleetPressure `json:"fleet,omitempty"`
}

// FleetPressure is Pressure of the whole fleet.
type FleetPressure struct {
	Running       int    `json:"running"`
	Queued        int    `json:"queued"`
	MaxConcurrent int    `json:"maxConcurrent"`
	Error         string `json:"error,omitempty"`
}

// Pressure asks the semaphores how they stand.
func (s *Server) Pressure(ctx context.Context) Pressure {
	mine, id := s.opt.Semaphore, ID
	if s.opt.Local != nil {
		mine, id = s.opt.Local, httpshed.LocalID
	}
	u, err := mine.Usage(ctx, id)
	p := Pressure{
		Running: u.Active, Queued: u.Waiting, MaxConcurrent: u.Limit, MaxQueued: s.opt.MaxQueue,
		RecentlyRejected: s.recent.sum(), Reason: s.unready(),
	}
	switch {
	case p.Reason != "":
	case err != nil:
		p.Reason = "the semaphore cannot be asked"
	case u.Active >= u.Limit:
		p.Reason = "full"
	}
	if s.opt.Local != nil {
		p.Fleet = s.fleet(ctx)
		if p.Reason == "" && p.Fleet.Error == "" && p.Fleet.Running >= p.Fleet.MaxConcurrent {
			p.Reason = "the fleet is full"
		}
	}
	p.IsAvailable = p.Reason == ""
	return p
}

func (s *Server) fleet(ctx context.Context) *FleetPressure {
	u, err := s.opt.Semaphore.Usage(ctx, ID)
	f := &FleetPressure{Running: u.Active, Queued: u.Waiting, MaxConcurrent: u.Limit}
	if err != nil {
		f.Error = "the semaphore of the fleet cannot be asked" // why is in the log
	}
	return f
}

func (s *Server) pressure(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(s.Pressure(r.Context()))
}

// recent counts what happened in the last minute.
type recent struct {
	mu      sync.Mutex
	seconds [60]int
	at      int64 // the second of the newest entry
}

func (c *recent) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn()
	c.seconds[c.at%60]++
}

func (c *recent) sum() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn()
	for _, k := range c.seconds {
		n += k
	}
	return n
}

// turn forgets the seconds that are more than a minute old.
func (c *recent) turn() {
	now := time.Now().Unix()
	for ; c.at < now; c.at++ {
		if now-c.at > 60 {
			c.at = now - 60
		}
		c.seconds[(c.at+1)%60] = 0
	}
}
