package demo

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// load is the clients of all projects, and what they saw.
type load struct {
	client http.Client
	all    sync.WaitGroup
	seen   map[string]*seen
}

// seen is what the clients of one project saw.
type seen struct {
	crash atomic.Bool // have the service crash

	mu       sync.Mutex
	admitted int
	errors   int             // neither admitted nor refused: it crashed, or was killed
	refused  []time.Duration // how long each took, dialling included
}

// startLoad starts the clients. They stop when ctx is over.
func startLoad(ctx context.Context, addresses func() []string) *load {
	l := &load{seen: make(map[string]*seen)}
	l.client.Transport = &http.Transport{MaxIdleConnsPerHost: 64}
	for _, p := range projects {
		s := new(seen)
		l.seen[p.name] = s
		for range p.clients {
			l.all.Go(func() {
				sleep(ctx, rand.N(500*time.Millisecond)) // they do not come in step
				for ctx.Err() == nil {
					addrs := addresses()
					pause := l.ask(ctx, "http://"+addrs[rand.IntN(len(addrs))]+"/work/"+p.name, s)
					sleep(ctx, pause)
				}
			})
		}
	}
	return l
}

// ask makes one request, and returns how long the client waits before the next.
func (l *load) ask(ctx context.Context, url string, s *seen) (pause time.Duration) {
	if s.crash.Load() {
		url += "?crash"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		panic(err) // the URL is ours
	}
	began := time.Now()
	answer, err := l.client.Do(r)
	took := time.Since(began)
	if err == nil {
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil: // over: it says nothing
	case err != nil || answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusTooManyRequests:
		s.errors++
		return 20 * time.Millisecond
	case answer.StatusCode == http.StatusOK:
		s.admitted++
	default:
		// A client as bad as they come: it does not heed Retry-After.
		s.refused = append(s.refused, took)
		return 20*time.Millisecond + rand.N(40*time.Millisecond)
	}
	return time.Millisecond
}

// crash has the service crash on each request of a project, or no longer.
func (l *load) crash(project string, on bool) { l.seen[project].crash.Store(on) }

// wait waits until all clients have stopped.
func (l *load) wait() {
	l.all.Wait()
	l.client.CloseIdleConnections()
}

// tally is what the clients of one project saw, in numbers.
type tally struct {
	Admitted int     `json:"admitted"`
	Refused  int     `json:"refused"`
	Errors   int     `json:"errors"`
	P50      float64 `json:"refusal_p50_ms"`
	P99      float64 `json:"refusal_p99_ms"`
}

func (l *load) tally(project string) tally {
	s := l.seen[project]
	s.mu.Lock()
	t := tally{Admitted: s.admitted, Refused: len(s.refused), Errors: s.errors}
	refused := slices.Clone(s.refused)
	s.mu.Unlock()
	if len(refused) > 0 {
		slices.Sort(refused)
		at := func(q float64) float64 {
			return float64(refused[int(q*float64(len(refused)-1))].Microseconds()) / 1000
		}
		t.P50, t.P99 = at(0.50), at(0.99)
	}
	return t
}
