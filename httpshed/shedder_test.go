package httpshed_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

func TestNewValidates(t *testing.T) {
	sem := semaphore(t, gotsem.Options{Limit: 1})
	_, err := httpshed.New(httpshed.Options{
		Local: nil, Wait: -1, Status: 200, LocalStatus: 42, Close: 7, Linger: -time.Second, RateLimit: `a"b`,
	})
	if err == nil {
		t.Fatal("taken")
	}
	for _, field := range []string{"Semaphore", "Key", "Wait", "Status is 200", "LocalStatus is 42", "Close", "Linger", "RateLimit"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("nothing about %s in %q", field, err)
		}
	}
	if _, err := httpshed.New(httpshed.Options{Semaphore: sem, Local: sem, Key: httpshed.Fixed("a")}); err == nil || !strings.Contains(err.Error(), "Local") {
		t.Errorf("the same semaphore twice: %v", err)
	}
}

// A refusal says when, and nothing else that is not for everybody.
func TestRefusal(t *testing.T) {
	t.Parallel()
	const canary = "s3cr3t-id"
	for _, c := range []struct {
		name string
		o    httpshed.Options
		kind string
		body string // a part of it
		want http.Header
	}{
		{name: "plain", kind: "text/plain; charset=utf-8", body: "Too many at once."},
		{name: "503", o: httpshed.Options{Status: 503}, kind: "text/plain; charset=utf-8"},
		{
			name: "problem", o: httpshed.Options{Problem: true, RateLimit: "capture"}, kind: "application/problem+json",
			body: `"violated-policies":["capture"]`,
			want: http.Header{"Ratelimit-Policy": {`"capture";q=1;qu="concurrent-requests"`}},
		},
		{
			name: "answer", kind: "application/xml", body: "<no/>", want: http.Header{"X-Envoy-Ratelimited": {"true"}},
			o: httpshed.Options{Answer: func(h http.Header, _ *http.Request, no httpshed.Refusal) []byte {
				h.Set("Content-Type", "application/xml")
				h.Set("X-Envoy-Ratelimited", "true")
				return []byte("<no/>")
			}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sem := semaphore(t, gotsem.Options{Limit: 1})
			if _, err := sem.Try(context.Background(), canary); err != nil {
				t.Fatal(err)
			}
			c.o.Semaphore, c.o.Key = sem, httpshed.ByHeader("X-Key")
			var told httpshed.Refusal
			c.o.OnRefuse = func(_ *http.Request, no httpshed.Refusal) { told = no }
			srv := serve(t, shedder(t, c.o).Handler(http.HandlerFunc(picture)))
			r, _ := http.NewRequest(http.MethodPost, srv.URL, strings.NewReader(`{"a": 1}`))
			r.Header.Set("X-Key", canary)
			a := ask(t, srv.Client(), r)
			want := c.o.Status
			if want == 0 {
				want = http.StatusTooManyRequests
			}
			wantStatus(t, a, want)
			after := a.Header.Get("Retry-After")
			if n, err := strconv.Atoi(after); err != nil || n < 1 || n != told.RetryAfter {
				t.Errorf("Retry-After %q, told %d", after, told.RetryAfter)
			}
			if a.Header.Get("Cache-Control") != "no-store" {
				t.Error("it may be cached")
			}
			if got := a.Header.Get("Content-Type"); got != c.kind {
				t.Errorf("Content-Type %q, want %q", got, c.kind)
			}
			if a.ContentLength != int64(len(a.body)) || !strings.Contains(a.body, c.body) {
				t.Errorf("body %q (%d), want %q", a.body, a.ContentLength, c.body)
			}
			for k, v := range c.want {
				if got := a.Header[k]; fmt.Sprint(got) != fmt.Sprint(v) {
					t.Errorf("%s: %q, want %q", k, got, v)
				}
			}
			if c.o.RateLimit != "" {
				if got, want := a.Header.Get("Ratelimit"), `"capture";r=0;t=`+after; got != want {
					t.Errorf("RateLimit %q, want %q", got, want)
				}
			}
			if c.o.Problem {
				var p struct {
					Type, Title string
					Status      int
				}
				if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Status != want || !strings.HasSuffix(p.Type, "#quota-exceeded") {
					t.Errorf("%+v, %v", p, err)
				}
			}
			if all := fmt.Sprint(a.Header, a.body); strings.Contains(all, canary) {
				t.Errorf("the id is in the answer: %s", all)
			}
			if !errors.Is(told.Err, gotsem.ErrFull) || told.Reason != httpshed.Full {
				t.Errorf("told %+v", told)
			}
		})
	}
}

// What Key and Weight do not accept is the request's fault, and says so.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	sem := semaphore(t, gotsem.Options{Limit: 2})
	shed := shedder(t, httpshed.Options{
		Semaphore: sem,
		Problem:   true,
		Key: func(r *http.Request) (string, error) {
			switch r.URL.Path {
			case "/plain":
				return "", errors.New("the database of s3cr3t said no")
			case "/status":
				return "", &httpshed.StatusError{Status: http.StatusUnauthorized, Text: "An API key is needed."}
			case "/odd":
				return "", fmt.Errorf("wrapped: %w", &httpshed.StatusError{Status: 200, Text: "Odd."})
			case "/empty":
				return "", nil
			case "/long":
				return strings.Repeat("x", gotsem.MaxID+1), nil
			}
			return "a", nil
		},
		Weight: func(r *http.Request) (int, error) {
			switch r.URL.Path {
			case "/weightless":
				return 0, nil
			case "/heavy":
				return 3, nil
			case "/unweighable":
				return 0, &httpshed.StatusError{Status: http.StatusUnprocessableEntity, Text: "No width."}
			}
			return 2, nil
		},
	})
	srv := serve(t, shed.Handler(http.HandlerFunc(picture)))
	for path, want := range map[string]int{
		"/plain": 400, "/status": 401, "/odd": 400, "/empty": 400, "/long": 400, "/weightless": 400, "/heavy": 413, "/unweighable": 422, "/fine": 200,
	} {
		a := get(t, srv.Client(), srv.URL+path)
		if a.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, a.StatusCode, want)
		}
		if a.Header.Get("Retry-After") != "" {
			t.Errorf("%s: Retry-After, though no retry helps", path)
		}
		if strings.Contains(a.body, "s3cr3t") {
			t.Errorf("%s: says %q", path, a.body)
		}
		if path == "/status" && !strings.Contains(a.body, "An API key is needed.") {
			t.Errorf("%s: says %q", path, a.body)
		}
		if a.Close {
			t.Errorf("%s: closed the connection, though no other server would do", path)
		}
	}
	if st := shed.Stats(); st.BadRequest != 7 || st.TooHeavy != 1 || st.Admitted != 1 || st.Refused() != 8 {
		t.Errorf("%+v", st)
	}
}

// A path value that no router has set is this server's mistake, not the request's:
// 500, and the log says what to do; one that a route has and the path leaves empty is
// the request's.
func TestUnsetPathValueIsTheServersFault(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	var told httpshed.Refusal
	shed := shedder(t, httpshed.Options{
		Semaphore: semaphore(t, gotsem.Options{Limit: 2}),
		Key:       httpshed.Overflow(10, httpshed.ByPathValue("project")),
		Logger:    slog.New(slog.NewTextHandler(&logged, nil)),
		OnRefuse:  func(_ *http.Request, no httpshed.Refusal) { told = no },
	})
	mux := http.NewServeMux()
	mux.HandleFunc("/p/{project}", picture)
	around := shed.Handler(mux) // before the router
	for range 3 {
		w := httptest.NewRecorder()
		around.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/p/a", nil))
		if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "project") || w.Header().Get("Retry-After") != "" {
			t.Errorf("%d %q", w.Code, w.Body)
		}
	}
	if told.Reason != httpshed.ServerFault || told.Status != http.StatusInternalServerError {
		t.Errorf("told %+v", told)
	}
	if log := logged.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "around the handler of a route with {project}") {
		t.Errorf("logged %q, want one line that says what to do", log)
	}
	within := http.NewServeMux()
	within.Handle("/p/{project...}", shed.Handler(http.HandlerFunc(picture)))
	for path, want := range map[string]int{"/p/a": 200, "/p/": 400} {
		w := httptest.NewRecorder()
		within.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
	if st := shed.Stats(); st.ServerFault != 3 || st.BadRequest != 1 || st.Admitted != 1 || st.Refused() != 4 {
		t.Errorf("%+v", st)
	}
}

// A store that cannot be asked is no full one: 503, also for a request that waits,
// under every outage policy that does not admit it.
func TestUnavailableIsNotFull(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]gotsem.Outage{"Closed": gotsem.Closed, "Local": gotsem.Local} {
		for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nobody listens
			t.Cleanup(func() { _ = rdb.Close() })
			sem := semaphore(t, gotsem.Options{Store: redisstore.New(rdb, "test:"), Limit: 10, Queue: 5, Outage: outage})
			var told httpshed.Refusal
			shed := shedder(t, httpshed.Options{Semaphore: sem, Wait: wait, OnRefuse: func(_ *http.Request, no httpshed.Refusal) { told = no }})
			srv := serve(t, shed.Handler(http.HandlerFunc(picture)))
			r, _ := http.NewRequest(http.MethodPost, srv.URL, strings.NewReader("{}"))
			if a := ask(t, srv.Client(), r); a.StatusCode != http.StatusServiceUnavailable || told.Reason != httpshed.Unavailable {
				t.Errorf("%s, waits %v: %d, %+v", name, wait, a.StatusCode, told)
			}
		}
	}
}

// A fleet without a limit worth the name has room, and so it is this server that is
// full.
func TestServerIsFullWhereTheFleetHasNoLimit(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: redisServer.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	for _, limit := range []int{1 << 30, math.MaxInt} {
		local := semaphore(t, gotsem.Options{Limit: 1})
		if _, err := local.Try(context.Background(), httpshed.LocalID); err != nil {
			t.Fatal(err)
		}
		fleet := semaphore(t, gotsem.Options{Store: redisstore.New(rdb, "test:"), Limit: limit, StoreTimeout: 5 * time.Second})
		shed := shedder(t, httpshed.Options{Semaphore: fleet, Local: local})
		w := httptest.NewRecorder()
		shed.Handler(http.HandlerFunc(picture)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if st := shed.Stats(); w.Code != http.StatusTooManyRequests || st.ServerFull != 1 {
			t.Errorf("limit %d: %d, %+v", limit, w.Code, st)
		}
	}
}

// recovering is a store that makes no grants for a while.
type recovering struct{ store.Store }

func (recovering) Acquire(context.Context, *store.Request) (store.Decision, error) {
	return store.Decision{Outcome: store.Recovering, RetryIn: 7 * time.Second}, nil
}

func TestRecoveringAndClosed(t *testing.T) {
	t.Parallel()
	sem := semaphore(t, gotsem.Options{Store: recovering{memstore.New()}, Limit: 1})
	shed := shedder(t, httpshed.Options{Semaphore: sem})
	srv := serve(t, shed.Handler(http.HandlerFunc(picture)))
	a := get(t, srv.Client(), srv.URL)
	wantStatus(t, a, http.StatusServiceUnavailable)
	if n, err := strconv.Atoi(a.Header.Get("Retry-After")); err != nil || n < 7 || n > 9 || a.Close {
		t.Errorf("Retry-After %q, closed %v", a.Header.Get("Retry-After"), a.Close)
	}
	if err := sem.Close(); err != nil {
		t.Fatal(err)
	}
	a = get(t, srv.Client(), srv.URL)
	wantStatus(t, a, http.StatusServiceUnavailable)
	if n, err := strconv.Atoi(a.Header.Get("Retry-After")); err != nil || n < 1 || !a.Close {
		t.Errorf("a server on its way out: Retry-After %q, closed %v", a.Header.Get("Retry-After"), a.Close)
	}
	if st := shed.Stats(); st.Recovering != 1 || st.Unavailable != 1 {
		t.Errorf("%+v", st)
	}
}

// connections counts those that a server has accepted.
func connections(srv *httptest.Server) *atomic.Int64 {
	var n atomic.Int64
	before := srv.Config.ConnState
	srv.Config.ConnState = func(c net.Conn, st http.ConnState) {
		if st == http.StateNew {
			n.Add(1)
		}
		if before != nil {
			before(c, st)
		}
	}
	return &n
}

// Refusals on an HTTP/2 connection leave the other requests on it alone.
func TestH2NeighboursAreSpared(t *testing.T) {
	t.Parallel()
	sem := semaphore(t, gotsem.Options{Limit: 1})
	shed := shedder(t, httpshed.Options{Semaphore: sem})
	g := newGate()
	mux := http.NewServeMux()
	mux.Handle("/shed", shed.Handler(g))
	mux.Handle("/neighbour", g)
	srv := httptest.NewUnstartedServer(mux)
	srv.EnableHTTP2 = true
	conns := connections(srv)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	var all sync.WaitGroup
	in := func(path string) {
		all.Go(func() {
			resp, err := srv.Client().Get(srv.URL + path)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
				t.Errorf("%s: %s %d", path, resp.Proto, resp.StatusCode)
			}
		})
		receive(t, path+" has begun", g.began)
	}
	in("/shed")
	for range 20 {
		in("/neighbour")
		for range 5 {
			r, _ := http.NewRequest(http.MethodPost, srv.URL+"/shed", strings.NewReader(strings.Repeat("x", 100<<10)))
			a := ask(t, srv.Client(), r)
			wantStatus(t, a, http.StatusTooManyRequests)
			if a.Header.Get("Connection") != "" {
				t.Error("a Connection field on HTTP/2")
			}
		}
	}
	close(g.open)
	all.Wait()
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections: refusals ended the first", n)
	}
	if st := shed.Stats(); st.Closed != 0 || st.Full != 100 {
		t.Errorf("%+v", st)
	}
}

// A kept connection goes on after a refusal, whether the request had a body or not:
// what is left of a body is never taken for the next request. A body of unknown
// length may be longer than what is read of it, so that one is closed, and says so.
func TestKeptConnection(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "{}", strings.Repeat("x", 100<<10), strings.Repeat("x", 1<<20)} {
		for _, chunked := range []bool{false, true} {
			shed := shedder(t, httpshed.Options{Semaphore: full(t, gotsem.Options{}), Close: httpshed.CloseNever})
			srv := httptest.NewUnstartedServer(shed.Handler(http.HandlerFunc(picture)))
			conns := connections(srv)
			srv.Start()
			t.Cleanup(srv.Close)
			conn, r := dial(t, srv)
			kept := !chunked
			for range 3 {
				if chunked {
					send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
					if body != "" {
						send(t, conn, "%x\r\n%s\r\n", len(body), body)
					}
					send(t, conn, "0\r\n\r\n")
				} else {
					send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				}
				a := readAnswer(t, r)
				wantStatus(t, a, http.StatusTooManyRequests)
				if a.Close == kept {
					t.Errorf("chunked %v: announces a close: %v", chunked, a.Close)
				}
				if a.Close {
					if b, err := r.ReadByte(); err == nil {
						t.Errorf("%q after the close", b)
					}
					break
				}
			}
			if n := conns.Load(); n != 1 {
				t.Errorf("%d connections, want 1", n)
			}
		}
	}
}

// A body that does not end in time on a connection that was to be kept: the
// connection goes, since what follows would be read as a request.
func TestNoRequestIsReadOutOfABody(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	shed := shedder(t, httpshed.Options{
		Semaphore: full(t, gotsem.Options{}), Close: httpshed.CloseNever, Linger: 50 * time.Millisecond,
		OnRefuse: func(*http.Request, httpshed.Refusal) { asked.Add(1) },
	})
	// A ResponseWriter that cannot be taken over makes it harder.
	noHijack := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(&writerOnly{w}, r) })
	}
	for name, h := range map[string]http.Handler{
		"net/http":  shed.Handler(http.HandlerFunc(picture)),
		"no Hijack": noHijack(shed.Handler(http.HandlerFunc(picture))),
	} {
		asked.Store(0)
		srv := serve(t, h)
		conn, r := dial(t, srv)
		const smuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
		send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
		wantStatus(t, readAnswer(t, r), http.StatusTooManyRequests)
		await(t, "it was cut", func() bool { return shed.Stats().Lingering == 0 && shed.Stats().Cut > 0 })
		_, _ = io.WriteString(conn, smuggled)
		if b, err := r.ReadByte(); err == nil {
			t.Errorf("%s: the rest of the body was answered: %q", name, b)
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("%s: %d requests were seen", name, n)
		}
	}
}

// writerOnly has deadlines and full duplex, but no Hijack.
type writerOnly struct{ w http.ResponseWriter }

func (w *writerOnly) Header() http.Header         { return w.w.Header() }
func (w *writerOnly) WriteHeader(code int)        { w.w.WriteHeader(code) }
func (w *writerOnly) Write(p []byte) (int, error) { return w.w.Write(p) }
func (w *writerOnly) Flush()                      { w.w.(http.Flusher).Flush() }
func (w *writerOnly) EnableFullDuplex() error {
	return http.NewResponseController(w.w).EnableFullDuplex()
}
func (w *writerOnly) SetReadDeadline(d time.Time) error {
	return http.NewResponseController(w.w).SetReadDeadline(d)
}

// So many connections linger, and no more: the others are cut at once.
func TestLingeringIsCapped(t *testing.T) {
	t.Parallel()
	shed := shedder(t, httpshed.Options{Semaphore: full(t, gotsem.Options{}), Linger: time.Hour, MaxLingering: 2})
	srv := serve(t, shed.Handler(http.HandlerFunc(picture)))
	var conns []net.Conn
	for i := range 5 {
		conn, r := dial(t, srv)
		send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\nx", 1<<20)
		wantStatus(t, readAnswer(t, r), http.StatusTooManyRequests)
		if i < 2 { // answered first, counted then
			await(t, "it lingers", func() bool { return shed.Stats().Lingering == i+1 })
		} else {
			if _, err := r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("connection %d lingers: %v", i, err)
			}
		}
		conns = append(conns, conn)
	}
	if st := shed.Stats(); st.Lingering != 2 || st.Cut != 3 {
		t.Errorf("%d linger, %d cut: want 2 and 3", st.Lingering, st.Cut)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	await(t, "nothing lingers", func() bool { return shed.Stats().Lingering == 0 })
}

// Closes have a budget, which holds for any second, not for those of a clock: what
// was closed late in one counts in the next.
func TestCloseBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := full(t, gotsem.Options{})
		defer sem.Close()
		shed := shedder(t, httpshed.Options{Semaphore: sem, ClosesPerSecond: 10})
		h := shed.Handler(http.HandlerFunc(picture))
		closes := func(n int) (closed int) {
			for range n {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				if w.Header().Get("Connection") == "close" {
					closed++
				}
			}
			return closed
		}
		for at, step := range []struct {
			after time.Duration
			want  int
		}{
			{900 * time.Millisecond, 10},
			{200 * time.Millisecond, 0}, // another second of the clock
			{700 * time.Millisecond, 0},
			{100 * time.Millisecond, 10}, // a second after the first ten
			{999 * time.Millisecond, 0},
			{time.Millisecond, 10},
		} {
			time.Sleep(step.after)
			if got := closes(50); got != step.want {
				t.Errorf("step %d: %d closed, want %d", at, got, step.want)
			}
		}
		if st := shed.Stats(); st.Closed != 30 || st.Spared != 270 {
			t.Errorf("%+v", st)
		}
	})
}

// A request waits only with a body that is read ahead; the others are refused, and
// what was read ahead the handler reads as it came.
func TestQueuedBodies(t *testing.T) {
	t.Parallel()
	small, large := strings.Repeat("a", 1000), strings.Repeat("a", 1001)
	for _, c := range []struct {
		name    string
		request string
		waits   bool
	}{
		{"fits", "Content-Length: 1000\r\n\r\n" + small, true},
		{"too large", "Content-Length: 1001\r\n\r\n" + large, false},
		{"fits, chunked", "Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + small + "\r\n0\r\n\r\n", true},
		{"too large, chunked", "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + large + "\r\n0\r\n\r\n", false},
		{"does not arrive", "Content-Length: 1000\r\n\r\na", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sem := semaphore(t, gotsem.Options{Limit: 1})
			held, err := sem.Try(context.Background(), "capture")
			if err != nil {
				t.Fatal(err)
			}
			wait := time.Minute
			if c.name == "does not arrive" {
				wait = 50 * time.Millisecond
			}
			shed := shedder(t, httpshed.Options{Semaphore: sem, Wait: wait, QueueBody: 1000, Linger: 50 * time.Millisecond})
			srv := serve(t, shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(w, r.Body)
			})))
			conn, r := dial(t, srv)
			send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\n%s", c.request)
			if c.waits {
				await(t, "it waits", func() bool { return usage(t, sem, "capture").Waiting == 1 })
				if err := held.Release(context.Background()); err != nil {
					t.Fatal(err)
				}
				a := readAnswer(t, r)
				wantStatus(t, a, http.StatusOK)
				if a.body != small {
					t.Errorf("the handler read %d bytes, want %d", len(a.body), len(small))
				}
				return
			}
			wantStatus(t, readAnswer(t, r), http.StatusTooManyRequests)
			if st := sem.Stats(); st.Queued != 0 {
				t.Errorf("it stood in line: %+v", st)
			}
			if st := shed.Stats(); st.Full != 1 || st.ClientGone != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A body is not read ahead for a line that is never stood in: there is room.
func TestBodyIsNotReadForRoom(t *testing.T) {
	t.Parallel()
	shed := shedder(t, httpshed.Options{Semaphore: semaphore(t, gotsem.Options{Limit: 1}), Wait: time.Hour})
	began := make(chan struct{})
	srv := serve(t, shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(began)
		_, _ = io.Copy(w, r.Body)
	})))
	conn, r := dial(t, srv)
	send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
	receive(t, "the handler has begun before the body is there", began)
	send(t, conn, "ok")
	if a := readAnswer(t, r); a.body != "ok" {
		t.Errorf("%q", a.body)
	}
}

// The line and its end: one waits and gets in, one waits for too long, one finds
// the line full. MaxWait is the time of all of it.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := semaphore(t, gotsem.Options{Limit: 1, Queue: 2})
		defer sem.Close()
		shed := shedder(t, httpshed.Options{Semaphore: sem, Wait: 1500 * time.Millisecond})
		h := shed.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(time.Second) }))
		began := time.Now()
		codes := make([]int, 4)
		took := make([]time.Duration, 4)
		var all sync.WaitGroup
		for i := range codes {
			all.Go(func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				codes[i], took[i] = w.Code, time.Since(began)
			})
			synctest.Wait()
		}
		all.Wait()
		if fmt.Sprint(codes) != "[200 200 429 429]" {
			t.Errorf("%v", codes)
		}
		if took[2] != 1500*time.Millisecond || took[3] != 0 {
			t.Errorf("took %v: the third waits 1.5 s, the fourth not at all", took)
		}
		if st := shed.Stats(); st.Admitted != 2 || st.WaitedTooLong != 1 || st.LineFull != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// With two caps nothing is held while the other is waited for.
func TestBothCaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := semaphore(t, gotsem.Options{Limit: 1})
		local := semaphore(t, gotsem.Options{Limit: 1})
		defer fleet.Close()
		defer local.Close()
		shed := shedder(t, httpshed.Options{Semaphore: fleet, Local: local, Wait: 10 * time.Second, Key: httpshed.ByHeader("X-Project")})
		h := shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if usage(t, fleet, r.Header.Get("X-Project")).Active != 1 || usage(t, local, httpshed.LocalID).Active != 1 {
				t.Error("a request runs without a slot of each")
			}
			time.Sleep(time.Second)
		}))
		do := func(project string) int {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("X-Project", project)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		}
		elsewhere, err := fleet.Try(t.Context(), "a") // held by another server
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			if code := do("a"); code != http.StatusOK {
				t.Errorf("a: %d", code)
			}
		})
		synctest.Wait()
		if u := usage(t, local, httpshed.LocalID); u.Active != 0 {
			t.Error("who waits for the fleet holds a slot of this server")
		}
		if code := do("b"); code != http.StatusOK {
			t.Errorf("b: %d: another project is kept out by one that waits", code)
		}
		if err := elsewhere.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		if n := usage(t, fleet, "a").Active + usage(t, local, httpshed.LocalID).Active; n != 0 {
			t.Errorf("%d slots are left", n)
		}
		if st := shed.Stats(); st.Admitted != 2 || st.Held != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// The handler's ResponseWriter is the server's own: all it can, and net/http's
// checks for methods nobody else can have.
func TestWriterIsNotWrapped(t *testing.T) {
	t.Parallel()
	shed := shedder(t, httpshed.Options{Semaphore: semaphore(t, gotsem.Options{Limit: 10})})
	var outer string
	h := shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := fmt.Sprintf("%p", w); got != outer {
			t.Errorf("%s: another ResponseWriter", r.Proto)
		}
		_, flusher := w.(http.Flusher)
		_, from := w.(io.ReaderFrom)
		_, hijacker := w.(http.Hijacker)
		_, pusher := w.(http.Pusher)
		if h2 := r.ProtoMajor == 2; !flusher || from == h2 || hijacker == h2 || pusher != h2 {
			t.Errorf("%s: flusher %v, reader from %v, hijacker %v, pusher %v", r.Proto, flusher, from, hijacker, pusher)
		}
		for i := range 2 { // events that arrive one by one
			_, _ = fmt.Fprintf(w, "%d", i)
			w.(http.Flusher).Flush()
		}
	}))
	noted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		outer = fmt.Sprintf("%p", w)
		h.ServeHTTP(w, r)
	})
	for _, srv := range []*httptest.Server{serve(t, noted), serveH2(t, noted)} {
		if a := get(t, srv.Client(), srv.URL); a.body != "01" {
			t.Errorf("%q", a.body)
		}
	}
}

// upgrade takes a connection over, as a WebSocket does.
const upgrade = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"

// A connection that was taken over holds its slot until it is closed, also after
// the handler has returned; once, however often it is closed.
func TestHijack(t *testing.T) {
	t.Parallel()
	sem := semaphore(t, gotsem.Options{Limit: 1})
	shed := shedder(t, httpshed.Options{Semaphore: sem})
	conns := make(chan net.Conn, 1)
	returned := make(chan struct{}, 1)
	h := shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { returned <- struct{}{} }()
		var conn net.Conn
		var err error
		if r.URL.Path == "/controller" {
			conn, _, err = http.NewResponseController(w).Hijack()
		} else {
			conn, _, err = w.(http.Hijacker).Hijack()
		}
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		conns <- conn
	}))
	srv := serve(t, h)
	for _, path := range []string{"/", "/controller"} {
		client, r := dial(t, srv)
		send(t, client, "%s", strings.Replace(upgrade, "/", path, 1))
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%v, %v", resp, err)
		}
		conn := receive(t, "the connection", conns)
		receive(t, "the handler returns", returned)
		wantStatus(t, get(t, srv.Client(), srv.URL), http.StatusTooManyRequests)
		if under, ok := conn.(interface{ NetConn() net.Conn }); !ok {
			t.Error("no way to the connection beneath")
		} else if _, ok := under.NetConn().(*net.TCPConn); !ok {
			t.Errorf("beneath is a %T", under.NetConn())
		}
		if half, ok := conn.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
			t.Error("it cannot be half-closed")
		}
		if usage(t, sem, "capture").Active != 1 {
			t.Error("a half-closed connection has given its slot back")
		}
		_ = conn.Close()
		_ = conn.Close()
		await(t, "the slot is free", func() bool { return usage(t, sem, "capture").Active == 0 })
	}
	if st := sem.Stats(); st.Granted != 2 || st.Released != 2 || shed.Stats().Held != 0 {
		t.Errorf("granted %d, released %d", st.Granted, st.Released)
	}
}

// One that is closed before the handler returns, and a handler that panics after.
func TestHijackAndPanic(t *testing.T) {
	t.Parallel()
	sem := semaphore(t, gotsem.Options{Limit: 1})
	shed := shedder(t, httpshed.Options{Semaphore: sem})
	h := shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Close()
		if usage(t, sem, "capture").Active != 1 {
			t.Error("the handler runs without its slot")
		}
		panic(http.ErrAbortHandler)
	}))
	srv := serve(t, h)
	conn, r := dial(t, srv)
	send(t, conn, "%s", upgrade)
	if _, err := r.ReadByte(); err == nil {
		t.Error("something was answered")
	}
	await(t, "the slot is free", func() bool { return usage(t, sem, "capture").Active == 0 })
	if st := sem.Stats(); st.Granted != 1 || st.Released != 1 {
		t.Errorf("granted %d, released %d", st.Granted, st.Released)
	}
}

// Keep: the slot ends with the last release, not before and not twice.
func TestKeep(t *testing.T) {
	t.Parallel()
	sem := semaphore(t, gotsem.Options{Limit: 1})
	held := func() int { return usage(t, sem, "capture").Active }
	shed := shedder(t, httpshed.Options{Semaphore: sem})
	run := func(h http.HandlerFunc) {
		t.Helper()
		w := httptest.NewRecorder()
		shed.Handler(h).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if w.Code != http.StatusOK {
			t.Fatalf("status %d: the slot before is not free", w.Code)
		}
	}
	var release, second func()
	run(func(_ http.ResponseWriter, r *http.Request) { // early: the work is done, the answer is not read
		release := httpshed.Keep(r.Context())
		release()
		if held() != 0 {
			t.Error("released early, and still held")
		}
		if err := r.Context().Err(); err != nil {
			t.Errorf("the request ended with its slot: %v", err)
		}
		httpshed.Keep(r.Context())() // too late to keep anything
		release()
	})
	run(func(_ http.ResponseWriter, r *http.Request) { release = httpshed.Keep(r.Context()) })
	if held() != 1 {
		t.Error("kept, and released when the handler returned")
	}
	release()
	release()
	if held() != 0 {
		t.Error("released, and still held")
	}
	run(func(_ http.ResponseWriter, r *http.Request) { // by two, through a context made from the request's
		ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
		defer cancel()
		release, second = httpshed.Keep(ctx), httpshed.Keep(ctx)
	})
	second()
	second()
	if held() != 1 {
		t.Error("two keep it, one released twice, and it is free")
	}
	release()
	if held() != 0 {
		t.Error("released by both, and still held")
	}
	func() {
		defer func() { _ = recover() }()
		run(func(_ http.ResponseWriter, r *http.Request) {
			defer httpshed.Keep(r.Context())()
			panic("as the test wants it")
		})
	}()
	if held() != 0 {
		t.Error("a panic leaks what was kept")
	}
	httpshed.Keep(context.Background())() // no slot: nothing to do
	if httpshed.Lease(context.Background()) != nil {
		t.Error("a lease out of nowhere")
	}
	if st := sem.Stats(); st.Granted != st.Released {
		t.Errorf("granted %d, released %d", st.Granted, st.Released)
	}
}

// Keep against the handler's return: 1,000 rounds, and the slot ends once.
func TestKeepMeetsReturn(t *testing.T) {
	t.Parallel()
	sem := semaphore(t, gotsem.Options{Limit: 1})
	shed := shedder(t, httpshed.Options{Semaphore: sem})
	var all sync.WaitGroup
	for range 1000 {
		var late sync.WaitGroup
		shed.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			late.Go(func() { httpshed.Keep(r.Context())() })
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		late.Wait()
		if n := usage(t, sem, "capture").Active; n != 0 {
			t.Fatal("a slot is left")
		}
	}
	all.Wait()
	if st := sem.Stats(); st.Granted != 1000 || st.Released != 1000 || shed.Stats().Held != 0 {
		t.Errorf("granted %d, released %d, %+v", st.Granted, st.Released, shed.Stats())
	}
}

// With a Shedder around another, Keep keeps both slots.
func TestKeepNested(t *testing.T) {
	t.Parallel()
	a, b := semaphore(t, gotsem.Options{Limit: 1}), semaphore(t, gotsem.Options{Limit: 1})
	var release func()
	inner := shedder(t, httpshed.Options{Semaphore: b}).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		release = httpshed.Keep(r.Context())
	}))
	shedder(t, httpshed.Options{Semaphore: a}).Handler(inner).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	if usage(t, a, "capture").Active != 1 || usage(t, b, "capture").Active != 1 {
		t.Error("not both are kept")
	}
	release()
	if usage(t, a, "capture").Active != 0 || usage(t, b, "capture").Active != 0 {
		t.Error("not both are released")
	}
}

// The request's context ends when its lease is lost, and says why; also for those
// made from it before, and seen by Err alone. Otherwise it is the server's.
func TestContextEndsWithTheLease(t *testing.T) {
	t.Parallel()
	sem := semaphore(t, gotsem.Options{Limit: 1})
	shed := shedder(t, httpshed.Options{Semaphore: sem})
	type key struct{}
	revoke := func(r *http.Request) {
		if ok, err := sem.Revoke(context.Background(), "capture", httpshed.Lease(r.Context()).SlotID()); !ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
	}
	run := func(h http.HandlerFunc) context.Context {
		var left context.Context
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "v"))
		defer cancel()
		shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			left = r.Context()
			h(w, r)
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		return left
	}
	run(func(_ http.ResponseWriter, r *http.Request) { // waited for
		child, cancel := context.WithCancel(r.Context())
		defer cancel()
		if r.Context().Value(key{}) != "v" || child.Value(key{}) != "v" {
			t.Error("its values are gone")
		}
		revoke(r)
		receive(t, "the context ends", child.Done())
		for _, ctx := range []context.Context{r.Context(), child} {
			if !errors.Is(ctx.Err(), context.Canceled) || !errors.Is(context.Cause(ctx), gotsem.ErrLeaseLost) {
				t.Errorf("%v, cause %v", ctx.Err(), context.Cause(ctx))
			}
		}
	})
	run(func(_ http.ResponseWriter, r *http.Request) { // looked at
		if r.Context().Err() != nil {
			t.Error("over already")
		}
		revoke(r)
		await(t, "Err sees it", func() bool { return r.Context().Err() != nil })
		if !errors.Is(context.Cause(r.Context()), gotsem.ErrLeaseLost) {
			t.Errorf("cause %v", context.Cause(r.Context()))
		}
	})
	for _, look := range []bool{false, true} { // not lost: it ends with the request
		ctx := run(func(_ http.ResponseWriter, r *http.Request) {
			if look {
				_ = r.Context().Done()
			}
		})
		receive(t, "it ends with the request", ctx.Done())
		if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) || errors.Is(cause, gotsem.ErrLeaseLost) {
			t.Errorf("cause %v", cause)
		}
	}
}

// Shadow refuses nobody, waits for nobody, and counts who would have been.
func TestShadow(t *testing.T) {
	t.Parallel()
	var told []httpshed.Refusal
	shed := shedder(t, httpshed.Options{
		Semaphore: full(t, gotsem.Options{}), Shadow: true, Wait: time.Hour,
		OnRefuse: func(_ *http.Request, no httpshed.Refusal) { told = append(told, no) },
	})
	h := shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if httpshed.Lease(r.Context()) != nil {
			t.Error("it holds a slot")
		}
		httpshed.Keep(r.Context())()
		_, _ = io.Copy(w, r.Body)
	}))
	srv := serve(t, h)
	for range 3 {
		r, _ := http.NewRequest(http.MethodPost, srv.URL, strings.NewReader("body"))
		a := ask(t, srv.Client(), r)
		if a.StatusCode != http.StatusOK || a.body != "body" || a.Close || a.Header.Get("Retry-After") != "" {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
	}
	if st := shed.Stats(); st.Shadowed != 3 || st.Full != 3 || st.Admitted != 0 || len(told) != 3 || !told[0].Shadow || told[0].Status != 429 {
		t.Errorf("%+v, %+v", st, told)
	}
}

// Files of a parsed form are removed, though the handler's request is a copy.
func TestFormFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	shed := shedder(t, httpshed.Options{Semaphore: semaphore(t, gotsem.Options{Limit: 1})})
	srv := serve(t, shed.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		if names, _ := filepath.Glob(dir + "/*"); len(names) == 0 {
			t.Error("no file was made: this shows nothing")
		}
	})))
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, _ := form.CreateFormFile("f", "f")
	_, _ = part.Write(make([]byte, 11<<20))
	_ = form.Close()
	r, _ := http.NewRequest(http.MethodPost, srv.URL, &body)
	r.Header.Set("Content-Type", form.FormDataContentType())
	wantStatus(t, ask(t, srv.Client(), r), http.StatusOK)
	await(t, "the file is gone", func() bool {
		names, err := filepath.Glob(dir + "/*")
		return err == nil && len(names) == 0
	})
}

// What the semaphore logs and what clients read never has an API key in it that was
// hashed.
func TestHashedKeysStayOut(t *testing.T) {
	t.Parallel()
	const apiKey = "sk-live-0123456789"
	var logged bytes.Buffer
	sem := semaphore(t, gotsem.Options{Limit: 1, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	key, err := httpshed.HashID([]byte("a secret of 16 bytes or more"), httpshed.ByHeader("X-API-Key"))
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	shed := shedder(t, httpshed.Options{
		Semaphore: sem, Key: key,
		OnRefuse: func(_ *http.Request, no httpshed.Refusal) { said = append(said, no.Err.Error()) },
	})
	h := shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for id, err := range sem.IDs(r.Context()) {
			said = append(said, id, fmt.Sprint(err))
		}
		again := httptest.NewRequest(http.MethodGet, "/", nil)
		again.Header.Set("X-API-Key", apiKey)
		no := httptest.NewRecorder()
		shed.Handler(http.NotFoundHandler()).ServeHTTP(no, again)
		if no.Code != http.StatusTooManyRequests {
			t.Errorf("%d: the same key has another id", no.Code)
		}
		said = append(said, fmt.Sprint(no.Header(), no.Body))
	}))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-API-Key", apiKey)
	h.ServeHTTP(httptest.NewRecorder(), r)
	said = append(said, logged.String())
	if all := strings.Join(said, "\n"); strings.Contains(all, "0123456789") || len(said) < 4 {
		t.Errorf("the key is in\n%s", all)
	}
}

// A refusal allocates nothing beyond what the semaphore does: its FullError, and
// not even that where a refusal is known.
func TestRefusalAllocates(t *testing.T) {
	for _, c := range []struct {
		name  string
		known time.Duration
		want  float64
	}{{"asked", 0, 1}, {"known", time.Hour, 0}} {
		shed := shedder(t, httpshed.Options{Semaphore: full(t, gotsem.Options{KnownFull: c.known})})
		h := shed.Handler(http.HandlerFunc(picture))
		w := &discard{http.Header{}}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		h.ServeHTTP(w, r)
		got := testing.AllocsPerRun(1000, func() {
			clear(w.h)
			h.ServeHTTP(w, r)
		})
		if raceEnabled { // sync.Pool then drops some of what it is given
			c.want += 2
		}
		if got > c.want {
			t.Errorf("%s: %.0f allocations per refusal, want %.0f", c.name, got, c.want)
		}
	}
}

// discard is a ResponseWriter that costs nothing.
type discard struct{ h http.Header }

func (w *discard) Header() http.Header         { return w.h }
func (w *discard) WriteHeader(int)             {}
func (w *discard) Write(p []byte) (int, error) { return len(p), nil }
