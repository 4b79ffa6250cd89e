package lab

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// BalancerResult is what keep-alive clients of three servers meet, one of which is
// full, behind a balancer of connections.
type BalancerResult struct {
	Close       bool
	Clients     int
	Requests    int
	Refused     int
	Stuck       int           // clients that never got anything but refusals
	Connections int           // made, in all
	P99         time.Duration // from the first try of a request to its success, of those that had one
	Unserved    int           // requests that had not succeeded when time was up
}

const (
	balancedServers = 3
	balancedClients = 30
	balancedWork    = 5 * time.Millisecond
	balancedPause   = 50 * time.Millisecond
)

// Balancer runs the experiment twice: with refusals that close their connection,
// and with refusals that keep it.
func Balancer(ctx context.Context, d time.Duration) ([]BalancerResult, error) {
	var out []BalancerResult
	for _, policy := range []httpshed.ClosePolicy{httpshed.CloseNever, httpshed.CloseRefused} {
		r, err := balance(ctx, d, policy)
		if err != nil {
			return nil, err
		}
		out = append(out, *r)
	}
	return out, nil
}

func balance(ctx context.Context, d time.Duration, policy httpshed.ClosePolicy) (*BalancerResult, error) {
	var backends []string
	for i := range balancedServers {
		sem, err := gotsem.New(gotsem.Options{Limit: balancedClients, Queue: -1})
		if err != nil {
			return nil, err
		}
		defer func() { _ = sem.Close() }()
		shed, err := httpshed.New(httpshed.Options{Semaphore: sem, Key: httpshed.Fixed("work"), Close: policy, ClosesPerSecond: -1})
		if err != nil {
			return nil, err
		}
		if i == 0 { // the full one
			lease, err := sem.Try(ctx, "work", gotsem.Weight(balancedClients))
			if err != nil {
				return nil, err
			}
			defer func() { _ = lease.Release(ctx) }()
		}
		ts := httptest.NewServer(shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(balancedWork)
			_, _ = io.WriteString(w, "done")
		})))
		defer ts.Close()
		backends = append(backends, ts.Listener.Addr().String())
	}
	front, err := newFront(backends)
	if err != nil {
		return nil, err
	}
	defer front.close()

	r := &BalancerResult{Close: policy == httpshed.CloseRefused, Clients: balancedClients}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var mu sync.Mutex
	var served []time.Duration
	var wg sync.WaitGroup
	for range balancedClients {
		wg.Go(func() {
			c := client{url: "http://" + front.addr()}
			c.run(ctx)
			mu.Lock()
			defer mu.Unlock()
			r.Requests += c.requests
			r.Refused += c.refused
			r.Unserved += c.unserved
			served = append(served, c.served...)
			if len(c.served) == 0 {
				r.Stuck++
			}
		})
	}
	wg.Wait()
	r.Connections = int(front.made.Load())
	r.P99 = percentile(served, .99)
	return r, nil
}

// client makes one request after the other on a connection that it keeps, and tries
// each until it is served.
type client struct {
	url                         string
	requests, refused, unserved int
	served                      []time.Duration
}

func (c *client) run(ctx context.Context) {
	tr := &http.Transport{MaxConnsPerHost: 1}
	defer tr.CloseIdleConnections()
	h := &http.Client{Transport: tr}
	for ctx.Err() == nil {
		began := time.Now()
		for done := false; !done; {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
			if err != nil {
				return
			}
			resp, err := h.Do(req)
			if err != nil {
				c.unserved++
				return // time is up
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			c.requests++
			if done = resp.StatusCode == http.StatusOK; !done {
				c.refused++
			}
			select {
			case <-time.After(balancedPause):
			case <-ctx.Done():
				if !done {
					c.unserved++
					return
				}
			}
		}
		c.served = append(c.served, time.Since(began)-balancedPause)
	}
}

// front is a balancer of connections: it sends each to the next server, and knows
// nothing of what goes through it.
type front struct {
	l        net.Listener
	backends []string
	made     atomic.Int64
	wg       sync.WaitGroup
}

func newFront(backends []string) (*front, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &front{l: l, backends: backends}
	f.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			to := f.backends[int(f.made.Add(1))%len(f.backends)]
			f.wg.Go(func() { pipe(in, to) })
		}
	})
	return f, nil
}

func (f *front) addr() string { return f.l.Addr().String() }

func (f *front) close() {
	_ = f.l.Close()
	f.wg.Wait() // connections end with their clients
}

func pipe(in net.Conn, to string) {
	defer func() { _ = in.Close() }()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	var both sync.WaitGroup
	one := func(dst, src net.Conn) {
		_, _ = io.Copy(dst, src)
		if half, ok := dst.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}
	both.Go(func() { one(out, in) })
	both.Go(func() { one(in, out) })
	both.Wait()
}
