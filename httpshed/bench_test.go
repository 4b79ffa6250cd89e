//go:build unix

package httpshed_test

import (
	"bufio"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// How httpshed compares with a handler alone over real connections is measured in
// verify/bench. Here is what has no server, and what a refusal takes in an overload.

// bare answers 429 as a handler without a Shedder would.
func bare(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Retry-After", "1")
	h.Set("Cache-Control", "no-store")
	http.Error(w, "Too many at once. Retry-After says when to try again.", http.StatusTooManyRequests)
}

func picture(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "a picture\n")
}

// rawClient asks on one kept connection, with as little work as can be, so that
// what is measured is the server.
type rawClient struct {
	conn net.Conn
	r    *bufio.Reader
	addr string
}

const rawRequest = "GET /capture HTTP/1.1\r\nHost: x\r\n\r\n"

// ask asks once, and returns the status.
func (c *rawClient) ask(tb testing.TB) (status int) {
	for {
		if c.conn == nil {
			conn, err := net.Dial("tcp", c.addr)
			if err != nil {
				tb.Error(err)
				return 0
			}
			c.conn, c.r = conn, bufio.NewReader(conn)
		}
		_, err := io.WriteString(c.conn, rawRequest)
		if err == nil {
			var line []byte
			if line, err = c.r.ReadSlice('\n'); err == nil {
				status, err = strconv.Atoi(string(line[9:12]))
			}
		}
		if err == nil {
			break
		}
		c.close()
	}
	length, closes := 0, false
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil || len(line) == 2 {
			break
		}
		if v, ok := strings.CutPrefix(string(line), "Content-Length: "); ok {
			length, _ = strconv.Atoi(strings.TrimSpace(v))
		}
		closes = closes || strings.HasPrefix(string(line), "Connection: close")
	}
	if _, err := c.r.Discard(length); err != nil {
		tb.Error(err)
	}
	if closes {
		c.close()
	}
	return status
}

func (c *rawClient) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// BenchmarkOverload is how long a refusal takes, as its client sees it, at ten times
// what six slots of 20 ms can do: 3,000 requests a second.
func BenchmarkOverload(b *testing.B) {
	const slots, hold, clients = 6, 20 * time.Millisecond, 60
	shed := shedder(b, httpshed.Options{Semaphore: semaphore(b, gotsem.Options{Limit: slots})})
	srv := httptest.NewServer(shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(hold)
		picture(w, r)
	})))
	defer srv.Close()
	var mu sync.Mutex
	var refused []time.Duration
	served := 0
	cs := make([]rawClient, clients)
	for b.Loop() {
		var all sync.WaitGroup
		for i := range cs {
			all.Go(func() {
				time.Sleep(rand.N(hold))
				cs[i].addr = srv.Listener.Addr().String()
				began := time.Now()
				status := cs[i].ask(b)
				took := time.Since(began)
				mu.Lock()
				defer mu.Unlock()
				if status == 200 {
					served++
				} else {
					refused = append(refused, took)
				}
			})
		}
		all.Wait()
	}
	for i := range cs {
		cs[i].close()
	}
	slices.Sort(refused)
	b.ReportMetric(float64(len(refused))/float64(served), "refused/served")
	b.ReportMetric(float64(refused[len(refused)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(refused[len(refused)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHandler is what the handlers cost without a server: the difference to
// bare is all that a Shedder adds.
func BenchmarkHandler(b *testing.B) {
	for _, c := range []struct {
		name string
		h    func(b *testing.B) http.Handler
	}{
		{"refused/bare", func(*testing.B) http.Handler { return http.HandlerFunc(bare) }},
		{"refused/asked", func(b *testing.B) http.Handler {
			return shedder(b, httpshed.Options{Semaphore: full(b, gotsem.Options{})}).Handler(http.HandlerFunc(picture))
		}},
		{"refused/known", func(b *testing.B) http.Handler {
			return shedder(b, httpshed.Options{Semaphore: full(b, gotsem.Options{KnownFull: time.Hour})}).Handler(http.HandlerFunc(picture))
		}},
		{"admitted/bare", func(*testing.B) http.Handler { return http.HandlerFunc(picture) }},
		{"admitted/shed", func(b *testing.B) http.Handler {
			return shedder(b, httpshed.Options{Semaphore: semaphore(b, gotsem.Options{Limit: 10})}).Handler(http.HandlerFunc(picture))
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			h := c.h(b)
			w := &discard{http.Header{}}
			r := httptest.NewRequest("GET", "/capture", nil)
			b.ReportAllocs()
			for b.Loop() {
				clear(w.h)
				h.ServeHTTP(w, r)
			}
		})
	}
}
