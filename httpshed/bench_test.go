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
	"syscall"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// bare answers 429 as a handler would that nobody helps.
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

// asker is a client with one connection.
type asker interface {
	ask(tb testing.TB) (status int)
	close()
}

// realClient is net/http's: half of what is measured with it is the client.
type realClient struct {
	http.Client
	url string
}

func newReal(addr string) asker {
	return &realClient{http.Client{Transport: &http.Transport{}}, "http://" + addr + "/capture"}
}

func (c *realClient) ask(tb testing.TB) int {
	resp, err := c.Get(c.url)
	if err != nil {
		tb.Error(err)
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func (c *realClient) close() { c.CloseIdleConnections() }

func newRaw(addr string) asker { return &rawClient{addr: addr} }

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

// ratio serves two handlers over real connections, in short turns so that both
// meet the same machine, and reports the requests per second of each, and the median
// over the turns of shed ÷ bare: by the clock, and by the processor time of server
// and client, which other processes disturb less.
func ratio(b *testing.B, client func(addr string) asker, plain, shed http.Handler, want int) {
	const clients, each = 16, 100
	var servers [2]*httptest.Server
	var cs [2][clients]asker
	for i, h := range []http.Handler{plain, shed} {
		servers[i] = httptest.NewServer(h)
		defer servers[i].Close()
		for j := range cs[i] {
			cs[i][j] = client(servers[i].Listener.Addr().String())
		}
	}
	turn := func(i int) {
		var all sync.WaitGroup
		for j := range cs[i] {
			all.Go(func() {
				for range each {
					if status := cs[i][j].ask(b); status != want {
						b.Errorf("status %d, want %d", status, want)
					}
				}
			})
		}
		all.Wait()
	}
	turn(0) // connections, pools
	turn(1)
	var took [2]time.Duration
	var wall, cpu []float64
	for n := 0; b.Loop(); n++ {
		var now, busy [2]time.Duration
		for k := range servers {
			i := (k + n) % 2 // each is first every other time
			before, began := processTime(b), time.Now()
			turn(i)
			now[i] = time.Since(began)
			took[i] += now[i]
			busy[i] = processTime(b) - before
		}
		wall = append(wall, now[0].Seconds()/now[1].Seconds())
		cpu = append(cpu, busy[0].Seconds()/busy[1].Seconds())
	}
	for i := range cs {
		for j := range cs[i] {
			cs[i][j].close()
		}
	}
	asked := float64(len(wall) * clients * each)
	slices.Sort(wall)
	slices.Sort(cpu)
	b.ReportMetric(asked/took[0].Seconds(), "bare/s")
	b.ReportMetric(asked/took[1].Seconds(), "shed/s")
	b.ReportMetric(wall[len(wall)/2], "shed/bare")
	b.ReportMetric(cpu[len(cpu)/2], "shed/bare-cpu")
	b.ReportMetric(0, "ns/op")
}

func processTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRefused is refusals per second ÷ those of a bare handler that answers
// 429, in one run. Like that one it keeps connections, but for "closing", which is
// the default policy and has 100 of them made anew each second.
func BenchmarkRefused(b *testing.B) {
	for _, c := range []struct {
		name   string
		client func(addr string) asker
		known  time.Duration
		policy httpshed.ClosePolicy
	}{
		{"asked", newRaw, 0, httpshed.CloseNever},
		{"known", newRaw, time.Second, httpshed.CloseNever},
		{"closing", newRaw, 0, httpshed.CloseRefused},
		{"net/http client", newReal, 0, httpshed.CloseNever},
	} {
		b.Run(c.name, func(b *testing.B) {
			shed := shedder(b, httpshed.Options{Semaphore: full(b, gotsem.Options{KnownFull: c.known}), Close: c.policy})
			ratio(b, c.client, http.HandlerFunc(bare), shed.Handler(http.HandlerFunc(picture)), 429)
		})
	}
}

// BenchmarkAdmitted is the same for requests that are let in, and for a handler that
// takes and gives the slot by itself: what a Shedder adds is between the two.
func BenchmarkAdmitted(b *testing.B) {
	sem := semaphore(b, gotsem.Options{Limit: 1000})
	b.Run("shed", func(b *testing.B) {
		shed := shedder(b, httpshed.Options{Semaphore: sem})
		ratio(b, newRaw, http.HandlerFunc(picture), shed.Handler(http.HandlerFunc(picture)), 200)
	})
	b.Run("net/http client", func(b *testing.B) {
		shed := shedder(b, httpshed.Options{Semaphore: sem})
		ratio(b, newReal, http.HandlerFunc(picture), shed.Handler(http.HandlerFunc(picture)), 200)
	})
	b.Run("semaphore alone", func(b *testing.B) {
		ratio(b, newRaw, http.HandlerFunc(picture), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			lease, err := sem.Try(r.Context(), "capture")
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = lease.Release(r.Context()) }()
			picture(w, r)
		}), 200)
	})
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
