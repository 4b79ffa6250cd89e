package httpshed_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
)

// However a handler ends, its slot ends with it, once.
func TestSlotEndsWithItsHandler(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, time.Minute} {
		sem := semaphore(t, gotsem.Options{Limit: 2})
		shed := shedder(t, httpshed.Options{Semaphore: sem, Wait: wait})
		srv := httptest.NewUnstartedServer(shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/panic":
				panic("as the test wants it")
			case "/abort":
				panic(http.ErrAbortHandler)
			case "/goexit":
				runtime.Goexit()
			}
		})))
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.Start()
		t.Cleanup(srv.Close)
		for i := range 100 {
			path := []string{"/panic", "/abort", "/goexit", "/fine"}[i%4]
			resp, err := srv.Client().Post(srv.URL+path, "", nil) // the client itself repeats a GET
			if err == nil {
				_ = resp.Body.Close()
			}
			if (err == nil) != (path == "/fine") {
				t.Fatalf("%s: %v", path, err)
			}
		}
		await(t, "no slot is held", func() bool { return usage(t, sem, "capture").Active == 0 && shed.Stats().Held == 0 })
		if st := shed.Stats(); st.Admitted != 100 || st.Refused() != 0 {
			t.Errorf("one at a time, with 2 slots, some were refused: %+v", st)
		}
		for range 2 {
			if _, err := sem.Try(context.Background(), "capture"); err != nil {
				t.Errorf("the slots are not free: %v", err)
			}
		}
		if st := sem.Stats(); st.Granted != st.Released+2 {
			t.Errorf("granted %d, released %d: each once, but for the last two", st.Granted, st.Released)
		}
	}
}

// balancer balances connections, each in turn, as kube-proxy and L4 balancers do.
func balancer(t *testing.T, servers ...*httptest.Server) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	all.Go(func() {
		for i := 0; ; i++ {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", servers[i%len(servers)].Listener.Addr().String())
			if err != nil {
				_ = client.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, client, server)
			mu.Unlock()
			pipe := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_ = to.(*net.TCPConn).CloseWrite()
			}
			all.Go(func() { pipe(client, server) })
			all.Go(func() { pipe(server, client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return "http://" + l.Addr().String()
}

// A keep-alive client that was refused by the full one of three servers reaches
// another, because the refusal closed its connection; without that it never does.
func TestRefusalLeadsTheRetryElsewhere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		policy httpshed.ClosePolicy
		both   bool // a fleet with room, and this server's own cap
		away   bool // the retry gets away from the full server
		after  string
	}{
		{"closed", httpshed.CloseRefused, false, true, ""},
		{"this server full, the fleet not", httpshed.CloseRefused, true, true, "0"},
		{"kept", httpshed.CloseNever, false, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fleet := semaphore(t, gotsem.Options{Limit: 100})
			var servers []*httptest.Server
			for i := range 3 {
				sem := semaphore(t, gotsem.Options{Limit: 1})
				o := httpshed.Options{Semaphore: sem, Close: c.policy}
				id := "capture"
				if c.both {
					o.Semaphore, o.Local, id = fleet, sem, httpshed.LocalID
				}
				if i == 0 {
					if _, err := sem.Try(context.Background(), id); err != nil {
						t.Fatal(err)
					}
				}
				servers = append(servers, serve(t, shedder(t, o).Handler(http.HandlerFunc(picture))))
			}
			url := balancer(t, servers...)
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			first := get(t, client, url)
			wantStatus(t, first, http.StatusTooManyRequests)
			if after := first.Header.Get("Retry-After"); c.after != "" && after != c.after {
				t.Errorf("Retry-After %q, want %q", after, c.after)
			}
			for range 5 {
				again := get(t, client, url)
				if got := again.StatusCode == http.StatusOK; got != c.away {
					t.Fatalf("the retry got %d: away from the full server = %v, want %v", again.StatusCode, got, c.away)
				}
			}
		})
	}
}

// The refusal does not wait for a body that trickles in, whether it closes the
// connection or not, and the connection does not outlive Linger by much.
func TestRefusalDoesNotAwaitTheBody(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]httpshed.ClosePolicy{"closed": httpshed.CloseRefused, "kept": httpshed.CloseNever} {
		for _, length := range []int{200 << 10, 5 << 20} {
			t.Run(fmt.Sprintf("%s/%d", name, length), func(t *testing.T) {
				t.Parallel()
				const linger = 2 * time.Second
				shed := shedder(t, httpshed.Options{Semaphore: full(t, gotsem.Options{}), Close: policy, Linger: linger})
				srv := serve(t, shed.Handler(http.HandlerFunc(picture)))
				conn, r := dial(t, srv)
				began := time.Now()
				send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{", length)
				stop := make(chan struct{})
				var trickle sync.WaitGroup
				trickle.Go(func() {
					tick := time.NewTicker(200 * time.Millisecond)
					defer tick.Stop()
					for {
						select {
						case <-tick.C:
							if _, err := io.WriteString(conn, "x"); err != nil {
								return
							}
						case <-stop:
							return
						}
					}
				})
				defer trickle.Wait()
				defer close(stop)
				a := readAnswer(t, r)
				took := time.Since(began)
				wantStatus(t, a, http.StatusTooManyRequests)
				if took > linger/2 {
					t.Errorf("the refusal took %v: it waited for the body", took)
				}
				if a.Close != (policy == httpshed.CloseRefused) {
					t.Errorf("Connection: close = %v", a.Close)
				}
				if _, err := r.ReadByte(); err == nil {
					t.Error("something came after the refusal")
				} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
					t.Error("the connection is still open")
				}
				gone := time.Since(began)
				if gone < linger/2 {
					t.Errorf("the connection was cut after %v: nothing lingered", gone)
				}
				t.Logf("refused in %v, gone after %v", took, gone)
				await(t, "nothing lingers", func() bool { return shed.Stats().Lingering == 0 })
				if st := shed.Stats(); st.Cut != 1 {
					t.Errorf("cut %d connections, want 1", st.Cut)
				}
			})
		}
	}
}

// A client that sends 5 MB and reads only then finds its 429, not a reset.
func TestRefusedSenderFindsItsAnswer(t *testing.T) {
	t.Parallel()
	tries := 50 // 1,000 with GOTSEM_LONG
	if long() {
		tries = 1000
	}
	shed := shedder(t, httpshed.Options{Semaphore: full(t, gotsem.Options{}), ClosesPerSecond: -1, Linger: patience})
	srv := serve(t, shed.Handler(http.HandlerFunc(picture)))
	body := make([]byte, 5<<20)
	var left atomic.Int64
	left.Store(int64(tries))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				conn, err := net.Dial("tcp", srv.Listener.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.SetDeadline(time.Now().Add(patience))
				_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", len(body))
				if err == nil {
					_, err = conn.Write(body)
				}
				if err != nil {
					t.Errorf("sending: %v", err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Errorf("the answer was lost: %v", err)
				} else if resp.StatusCode != http.StatusTooManyRequests {
					t.Errorf("status %d", resp.StatusCode)
				}
				_ = conn.Close()
			}
		})
	}
	all.Wait()
	if st := shed.Stats(); int(st.Full) != tries || st.Cut != 0 {
		t.Errorf("%d tries: %+v", tries, st)
	}
}

// With Expect: 100-continue no byte of the body is asked for.
func TestRefusedBodyIsNotAskedFor(t *testing.T) {
	t.Parallel()
	for _, policy := range []httpshed.ClosePolicy{httpshed.CloseRefused, httpshed.CloseNever} {
		shed := shedder(t, httpshed.Options{Semaphore: full(t, gotsem.Options{}), Close: policy})
		srv := serve(t, shed.Handler(http.HandlerFunc(picture)))
		conn, r := dial(t, srv)
		send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", 5<<20)
		a := readAnswer(t, r) // a 100 would be read as an answer
		wantStatus(t, a, http.StatusTooManyRequests)
		if !a.Close {
			t.Error("the connection is kept, though what comes next on it cannot be told from the body")
		}
		_ = conn.Close()

		var sent atomic.Int64
		req, err := http.NewRequest(http.MethodPost, srv.URL, io.NopCloser(counted{bytes.NewReader(make([]byte, 5<<20)), &sent}))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = 5 << 20
		req.Header.Set("Expect", "100-continue")
		client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: patience}}
		wantStatus(t, ask(t, client, req), http.StatusTooManyRequests)
		client.CloseIdleConnections()
		if n := sent.Load(); n != 0 {
			t.Errorf("%d bytes of the body were sent", n)
		}
	}
}

type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// Places in line end with their clients, also those of POSTs whose bodies the
// handler has not read.
func TestPlaceEndsWithItsClient(t *testing.T) {
	t.Parallel()
	const length = "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"a\": [1,2]}"
	const chunks = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n{\"a\": [1,2]}\r\n0\r\n\r\n"
	const none = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, request := range map[string]string{"length": length, "chunks": chunks, "no body": none} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sem := semaphore(t, gotsem.Options{Limit: 1, Queue: 3})
			held, err := sem.Try(context.Background(), "capture")
			if err != nil {
				t.Fatal(err)
			}
			shed := shedder(t, httpshed.Options{Semaphore: sem, Wait: time.Minute})
			bodies := make(chan string, 10)
			srv := serve(t, shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				bodies <- fmt.Sprint(string(body), err)
			})))
			var hungUp []net.Conn
			for range 3 {
				conn, _ := dial(t, srv)
				send(t, conn, "%s", request)
				hungUp = append(hungUp, conn)
			}
			await(t, "three wait", func() bool { return usage(t, sem, "capture").Waiting == 3 })
			for _, conn := range hungUp {
				_ = conn.Close()
			}
			await(t, "the line is empty", func() bool { return usage(t, sem, "capture").Waiting == 0 })
			await(t, "they count as gone", func() bool { return shed.Stats().ClientGone == 3 })
			conn, r := dial(t, srv)
			send(t, conn, "%s", request)
			await(t, "a live one waits", func() bool { return usage(t, sem, "capture").Waiting == 1 })
			if err := held.Release(context.Background()); err != nil {
				t.Fatal(err)
			}
			wantStatus(t, readAnswer(t, r), http.StatusOK)
			want := `{"a": [1,2]}<nil>`
			if request == none {
				want = "<nil>"
			}
			if got := receive(t, "the live one is served", bodies); got != want {
				t.Errorf("its handler read %s, want %s", got, want)
			}
			if st := shed.Stats(); len(bodies) != 0 || st.Admitted != 1 || st.Refused() != 0 {
				t.Errorf("work was started for those who left: %d more, %+v", len(bodies), st)
			}
		})
	}
}

// The same on HTTP/2, where nothing has to be read.
func TestPlaceEndsWithItsClientH2(t *testing.T) {
	t.Parallel()
	sem := full(t, gotsem.Options{Queue: 3})
	shed := shedder(t, httpshed.Options{Semaphore: sem, Wait: time.Minute})
	srv := serveH2(t, shed.Handler(http.HandlerFunc(picture)))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			r, _ := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL, strings.NewReader("{}"))
			if _, err := srv.Client().Do(r); !errors.Is(err, context.Canceled) {
				t.Errorf("want it cancelled: %v", err)
			}
		})
	}
	await(t, "three wait", func() bool { return usage(t, sem, "capture").Waiting == 3 })
	cancel()
	all.Wait()
	await(t, "the line is empty", func() bool { return usage(t, sem, "capture").Waiting == 0 })
	await(t, "they count as gone", func() bool { return shed.Stats().ClientGone == 3 })
}

// load is one answer and how long it took.
type load struct {
	status int
	took   time.Duration
}

// burst sends n requests at once.
func burst(t *testing.T, srv *httptest.Server, n int) []load {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	defer client.CloseIdleConnections()
	out := make([]load, n)
	var all sync.WaitGroup
	for i := range out {
		all.Go(func() {
			began := time.Now()
			resp, err := client.Get(srv.URL)
			if err != nil {
				t.Error(err)
				return
			}
			_ = resp.Body.Close()
			out[i] = load{resp.StatusCode, time.Since(began)}
		})
	}
	all.Wait()
	return out
}

func count(ls []load, status int) (n int, slowest time.Duration) {
	for _, l := range ls {
		if l.status == status {
			n++
			slowest = max(slowest, l.took)
		}
	}
	return n, slowest
}

// slots answers after d, which is what its slot is for.
func slots(d time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(d):
			_, _ = io.WriteString(w, "done")
		case <-r.Context().Done():
		}
	})
}

// A burst is absorbed, an overload is shed: 6 slots of 1 s, a line of 6, 1.5 s.
func TestShortLineAbsorbsBurst(t *testing.T) {
	t.Parallel()
	fresh := func(t *testing.T) (*httptest.Server, *httpshed.Shedder) {
		shed := shedder(t, httpshed.Options{Semaphore: semaphore(t, gotsem.Options{Limit: 6, Queue: 6}), Wait: 1500 * time.Millisecond})
		return serve(t, shed.Handler(slots(time.Second))), shed
	}
	t.Run("12 at once", func(t *testing.T) {
		t.Parallel()
		srv, _ := fresh(t)
		n, slowest := count(burst(t, srv, 12), http.StatusOK)
		if n != 12 {
			t.Errorf("%d of 12 were served", n)
		}
		if slowest < 1900*time.Millisecond {
			t.Errorf("the slowest took %v: more than 6 ran at once", slowest)
		}
		t.Logf("the slowest of 12 took %v", slowest)
	})
	t.Run("60 at once", func(t *testing.T) {
		t.Parallel()
		srv, shed := fresh(t)
		all := burst(t, srv, 60)
		served, slowest := count(all, http.StatusOK)
		refused, slowestNo := count(all, http.StatusTooManyRequests)
		if served != 12 || refused != 48 {
			t.Errorf("%d served, %d refused: want 12 and 48 (%+v)", served, refused, shed.Stats())
		}
		if slowestNo > 500*time.Millisecond {
			t.Errorf("a refusal took %v: it stood in line", slowestNo)
		}
		t.Logf("the slowest yes %v, the slowest no %v", slowest, slowestNo)
	})
}

// The same at 10 a second for 60 s, in virtual time.
func TestOverloadIsShed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := semaphore(t, gotsem.Options{Limit: 6, Queue: 6})
		defer sem.Close()
		shed := shedder(t, httpshed.Options{Semaphore: sem, Wait: 1500 * time.Millisecond})
		client := pipe(t, shed.Handler(slots(time.Second)))
		var all sync.WaitGroup
		var served, refused atomic.Int64
		var slowestNo atomic.Int64
		began := time.Now()
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		var before int64
		const seconds = 60
		for i := range 10 * seconds {
			if i == 100 {
				before = heap()
			}
			all.Go(func() {
				asked := time.Now()
				resp, err := client.Get("http://shed/")
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					served.Add(1)
					return
				}
				refused.Add(1)
				slowestNo.Store(max(slowestNo.Load(), int64(time.Since(asked))))
			})
			time.Sleep(100 * time.Millisecond)
		}
		got, grown := served.Load(), heap()-before
		t.Logf("%v: %d served of a capacity of %d, %d refused; the heap grew by %d bytes", time.Since(began), got, 6*(seconds-1), refused.Load(), grown)
		all.Wait()
		if float64(got) < 0.95*6*(seconds-1) { // the first were served after a second
			t.Errorf("%d served, the capacity was %d", got, 6*(seconds-1))
		}
		if grown > 8<<20 {
			t.Errorf("the heap grew by %d bytes", grown)
		}
		if slowest := time.Duration(slowestNo.Load()); slowest != 0 && shed.Stats().WaitedTooLong == 0 {
			t.Errorf("a refusal took %v", slowest)
		}
		if st := shed.Stats(); st.LineFull+st.WaitedTooLong != uint64(refused.Load()) || refused.Load() < 200 {
			t.Errorf("%d refused: %+v", refused.Load(), st)
		}
	})
}

// A deep line serves those who have left, or are about to; a short one does not: 6
// slots of 1 s, 12 arrivals a second for 60 s, clients that give up after 5 s and
// come again, three times. In virtual time.
func TestShortLineServesThoseWhoWait(t *testing.T) {
	type result struct {
		good, wasted float64
		recovery     time.Duration // until somebody new comes who will be served
	}
	run := func(t *testing.T, queue int, wait time.Duration) (out result) {
		synctest.Test(t, func(t *testing.T) {
			sem := semaphore(t, gotsem.Options{Limit: 6, Queue: queue})
			defer sem.Close()
			shed := shedder(t, httpshed.Options{Semaphore: sem, Wait: wait})
			var work, wasted, good atomic.Int64
			client := pipe(t, shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				work.Add(1)
				time.Sleep(time.Second) // like a browser: it does not stop because nobody waits
				if r.Context().Err() != nil {
					wasted.Add(1)
					return
				}
				_, _ = io.WriteString(w, "done")
			})))
			client.Timeout = 5 * time.Second
			once := func() bool {
				resp, err := client.Get("http://shed/")
				if err != nil {
					return false
				}
				defer resp.Body.Close()
				_, err = io.Copy(io.Discard, resp.Body)
				return err == nil && resp.StatusCode == http.StatusOK
			}
			var all sync.WaitGroup
			const seconds = 60
			for range 12 * seconds {
				all.Go(func() {
					for range 3 {
						if once() {
							good.Add(1)
							return
						}
						time.Sleep(100 * time.Millisecond)
					}
				})
				time.Sleep(time.Second / 12)
			}
			out.good = float64(good.Load()) / (6 * (seconds - 1))
			out.wasted = float64(wasted.Load()) / float64(work.Load())
			stopped := time.Now()
			for asked := stopped; ; asked = time.Now() {
				if once() {
					out.recovery = asked.Sub(stopped)
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			all.Wait()
		})
		return out
	}
	deep, short := run(t, 100_000, time.Hour), run(t, 6, 1500*time.Millisecond)
	t.Logf("unbounded line: goodput %.2f of capacity, %.0f %% wasted, recovery %v", deep.good, 100*deep.wasted, deep.recovery)
	t.Logf("6 places:       goodput %.2f of capacity, %.0f %% wasted, recovery %v", short.good, 100*short.wasted, short.recovery)
	if short.wasted > 0.05 || short.good < 0.95 || short.recovery > time.Second {
		t.Errorf("with 6 places: %+v", short)
	}
	if deep.good > 0.5 || deep.recovery < 2*time.Second {
		t.Errorf("with an unbounded line: %+v: it did no harm, so this shows nothing", deep)
	}
}

// The slot stays taken until the work ends, not the request: with the limit in time
// around the Shedder, or with Keep.
func TestSlotOutlivesItsRequest(t *testing.T) {
	t.Parallel()
	work := make(chan struct{})
	blocked := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-work })
	keeps := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		release := httpshed.Keep(r.Context())
		go func() {
			defer release()
			<-work
		}()
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	sems := map[string]*gotsem.Semaphore{}
	servers := map[string]*httptest.Server{}
	for _, name := range []string{"limit in time around", "Keep"} {
		sems[name] = semaphore(t, gotsem.Options{Limit: 1})
		shed := shedder(t, httpshed.Options{Semaphore: sems[name]})
		h := shed.Handler(keeps)
		if name != "Keep" {
			h = http.TimeoutHandler(shed.Handler(blocked), 50*time.Millisecond, "too long")
		}
		servers[name] = serve(t, h)
	}
	for name, srv := range servers {
		wantStatus(t, get(t, srv.Client(), srv.URL), http.StatusServiceUnavailable)
		if a := get(t, srv.Client(), srv.URL); a.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%s: the request is over, its work is not, and another got %d", name, a.StatusCode)
		}
	}
	close(work)
	for name, sem := range sems {
		await(t, name+": the slot is free", func() bool { return usage(t, sem, "capture").Active == 0 })
	}
}

// comeBack refuses n requests in the same moment, and returns how many seconds each
// was told.
func comeBack(t *testing.T, h http.Handler, n int) []int {
	t.Helper()
	out := make([]int, n)
	for i := range out {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if w.Code != http.StatusTooManyRequests {
			t.Fatalf("status %d", w.Code)
		}
		after := w.Header().Get("Retry-After")
		s, err := strconv.Atoi(after)
		if err != nil || s < 1 || strconv.Itoa(s) != after {
			t.Fatalf("Retry-After %q: not an integer of at least 1", after)
		}
		out[i] = s
	}
	return out
}

// crowd is the most that come back in the same moment.
func crowd(seconds []int) int {
	at := map[int]int{}
	most := 0
	for _, s := range seconds {
		at[s]++
		most = max(most, at[s])
	}
	return most
}

// Retry-After comes from how fast slots came free, and spreads those who obey it.
func TestRetryAfterSpreads(t *testing.T) {
	for _, c := range []struct {
		name        string
		limit       int
		hold        time.Duration // how long requests took; 0: none has ended yet
		first, last int           // the range of what the first to be refused is told
		most        int           // of 1,000 that come back together
	}{
		{"nothing measured", 6, 0, 1, 5, 400},
		{"6 a second", 6, time.Second, 1, 3, 120},
		{"one in 10 s", 1, 10 * time.Second, 10, 15, 150},
		{"one in a minute", 1, time.Minute, 15, 30, 150},
		{"1,000 a second", 10, 10 * time.Millisecond, 1, 3, 600},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sem := semaphore(t, gotsem.Options{Limit: c.limit})
				defer sem.Close()
				shed := shedder(t, httpshed.Options{Semaphore: sem})
				block := make(chan struct{})
				h := shed.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					if c.hold > 0 {
						time.Sleep(c.hold)
					}
					<-block
				}))
				var all sync.WaitGroup
				fill := func() {
					for range c.limit {
						all.Go(func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)) })
					}
					synctest.Wait()
				}
				if c.hold > 0 {
					close(block) // a first round that is measured
					fill()
					all.Wait()
					block = make(chan struct{})
				}
				fill()
				told := comeBack(t, h, 1000)
				if told[0] < c.first || told[0] > c.last {
					t.Errorf("the first was told %d s, want %d to %d", told[0], c.first, c.last)
				}
				n := crowd(told)
				t.Logf("the first was told %d s, the last %d s; at most %d of 1,000 come back at once", told[0], told[999], n)
				if n > c.most {
					t.Errorf("%d of 1,000 come back at once, want at most %d", n, c.most)
				}
				if most := slices.Max(told); most > 30 {
					t.Errorf("somebody was told %d s", most)
				}
				close(block)
				all.Wait()
			})
		})
	}
}

// It follows the drain: those who obey find a slot about as often as slots come
// free, and a server that slowed down is noticed before its next request ends.
func TestRetryAfterFollowsTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := semaphore(t, gotsem.Options{Limit: 6})
		defer sem.Close()
		shed := shedder(t, httpshed.Options{Semaphore: sem})
		var served atomic.Int64
		h := shed.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			time.Sleep(time.Second)
			served.Add(1)
		}))
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
		defer stop()
		var all sync.WaitGroup
		for range 60 { // ten times what there is room for; each comes back when told, until served
			all.Go(func() {
				for ctx.Err() == nil {
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
					if w.Code == http.StatusOK {
						continue
					}
					s, _ := strconv.Atoi(w.Header().Get("Retry-After"))
					select {
					case <-time.After(time.Duration(s)*time.Second + rand.N(100*time.Millisecond)):
					case <-ctx.Done():
					}
				}
			})
		}
		all.Wait()
		st := shed.Stats()
		t.Logf("in 120 s: %d served of 720, %d refusals", served.Load(), st.Full)
		if got := served.Load(); got < 600 {
			t.Errorf("%d served: the slots stood empty, clients were sent away for too long", got)
		}
		if st.Full > 3*st.Admitted {
			t.Errorf("%d refusals for %d served: clients were told to come back too early", st.Full, st.Admitted)
		}
	})
}

// 0 is said only where another server has room now, and where the retry goes there.
func TestRetryAfterZeroMeansElsewhere(t *testing.T) {
	t.Parallel()
	type want struct {
		reason httpshed.Reason
		zero   bool
		closed bool
	}
	for _, c := range []struct {
		name          string
		h2, fleetFull bool
		gone          bool // the fleet cannot be asked
		policy        httpshed.ClosePolicy
		budget        int
		want          want
	}{
		{name: "this server full, fleet free", want: want{httpshed.ServerFull, true, true}},
		{name: "fleet full", fleetFull: true, want: want{httpshed.Full, false, false}},
		{name: "fleet not to be asked", gone: true, want: want{httpshed.ServerFull, false, true}},
		{name: "behind an L7 proxy", policy: httpshed.CloseNever, want: want{httpshed.ServerFull, true, false}},
		{name: "budget used up", budget: 1, want: want{httpshed.ServerFull, false, false}},
		{name: "h2", h2: true, want: want{httpshed.ServerFull, false, false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			st := &goneStore{Store: memstore.New()}
			fleet := semaphore(t, gotsem.Options{Store: st, Limit: 1, Outage: gotsem.Closed})
			if c.fleetFull {
				if _, err := fleet.Try(context.Background(), "capture"); err != nil {
					t.Fatal(err)
				}
			}
			st.gone.Store(c.gone)
			local := semaphore(t, gotsem.Options{Limit: 1})
			if _, err := local.Try(context.Background(), httpshed.LocalID); err != nil {
				t.Fatal(err)
			}
			var told httpshed.Refusal
			shed := shedder(t, httpshed.Options{
				Semaphore: fleet, Local: local, Close: c.policy, ClosesPerSecond: c.budget,
				OnRefuse: func(_ *http.Request, no httpshed.Refusal) { told = no },
			})
			h := shed.Handler(http.HandlerFunc(picture))
			srv := serve(t, h)
			if c.h2 {
				srv = serveH2(t, h)
			}
			if c.budget > 0 { // in this second; if it ends meanwhile, once more
				await(t, "a refusal within the second", func() bool {
					get(t, srv.Client(), srv.URL)
					get(t, srv.Client(), srv.URL)
					return !told.Close
				})
				if st := shed.Stats(); st.Spared == 0 {
					t.Errorf("nothing spared: %+v", st)
				}
			}
			a := get(t, srv.Client(), srv.URL)
			if c.budget > 0 && a.Close {
				a = get(t, srv.Client(), srv.URL) // that was the next second's
			}
			wantStatus(t, a, http.StatusTooManyRequests)
			after, err := strconv.Atoi(a.Header.Get("Retry-After"))
			if err != nil || (after == 0) != c.want.zero || after < 0 {
				t.Errorf("Retry-After %q, want 0: %v", a.Header.Get("Retry-After"), c.want.zero)
			}
			if a.Close != c.want.closed || told.Close != c.want.closed {
				t.Errorf("closed %v, want %v", a.Close, c.want.closed)
			}
			if told.Reason != c.want.reason {
				t.Errorf("refused as %v, want %v", told.Reason, c.want.reason)
			}
			if u := usage(t, local, httpshed.LocalID); u.Active != 1 {
				t.Errorf("%d of this server's slots are held, want the test's one", u.Active)
			}
		})
	}
}

// goneStore is a store that can go away: then nothing answers before its time is up.
type goneStore struct {
	store.Store
	gone atomic.Bool
}

func (s *goneStore) away(ctx context.Context, budget time.Duration) error {
	if !s.gone.Load() {
		return nil
	}
	if budget == 0 {
		budget = time.Hour
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(budget):
		return errors.New("no answer")
	}
}

func (s *goneStore) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	if err := s.away(ctx, r.Budget); err != nil {
		return store.Decision{}, err
	}
	return s.Store.Acquire(ctx, r)
}

func (s *goneStore) Release(ctx context.Context, r *store.Release) (bool, error) {
	if err := s.away(ctx, r.Budget); err != nil {
		return false, err
	}
	return s.Store.Release(ctx, r)
}

func (s *goneStore) Renew(ctx context.Context, rs []store.Renewal) []store.RenewResult {
	if err := s.away(ctx, 0); err != nil {
		out := make([]store.RenewResult, len(rs))
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	return s.Store.Renew(ctx, rs)
}

func (s *goneStore) Usage(ctx context.Context, id string, limit int) (store.Usage, error) {
	if err := s.away(ctx, 0); err != nil {
		return store.Usage{}, err
	}
	return s.Store.Usage(ctx, id, limit)
}

// A probe is let through under full load, and with the store gone.
func TestProbesAreLetThrough(t *testing.T) {
	t.Parallel()
	st := &goneStore{Store: memstore.New()}
	sem := semaphore(t, gotsem.Options{Store: st, Limit: 1, Queue: 1, Outage: gotsem.Closed})
	shed := shedder(t, httpshed.Options{Semaphore: sem, Wait: time.Hour, Skip: httpshed.SkipPaths("/healthz", "/readyz")})
	g := newGate()
	mux := http.NewServeMux()
	mux.Handle("/capture", g)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	srv := serve(t, shed.Handler(mux))
	var all sync.WaitGroup
	defer all.Wait()
	defer close(g.open)
	for range 2 { // one is let in, one waits
		all.Go(func() {
			if resp, err := srv.Client().Get(srv.URL + "/capture"); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	receive(t, "the first is let in", g.began)
	await(t, "the second waits", func() bool { return usage(t, sem, "capture").Waiting == 1 })
	probe := func(when string) {
		t.Helper()
		began := time.Now()
		if a := get(t, srv.Client(), srv.URL+"/healthz"); a.StatusCode != http.StatusOK {
			t.Errorf("%s: /healthz is %d", when, a.StatusCode)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: /healthz took %v", when, took)
		}
	}
	wantStatus(t, get(t, srv.Client(), srv.URL+"/capture"), http.StatusTooManyRequests)
	probe("full")
	st.gone.Store(true)
	a := get(t, srv.Client(), srv.URL+"/capture")
	wantStatus(t, a, http.StatusServiceUnavailable)
	if after, err := strconv.Atoi(a.Header.Get("Retry-After")); err != nil || after < 1 || a.Close {
		t.Errorf("a store that cannot be asked: Retry-After %q, closed %v", a.Header.Get("Retry-After"), a.Close)
	}
	probe("store gone")
	if st := shed.Stats(); st.Skipped != 2 {
		t.Errorf("%d probes were let through, want 2", st.Skipped)
	}
	st.gone.Store(false)
}
