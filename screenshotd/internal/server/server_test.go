package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/browser"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/guard"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// studio takes pictures without a browser.
type studio struct {
	capture func(context.Context, browser.Job) (*browser.Picture, error)
	broken  error
	running atomic.Int64
}

func (s *studio) Capture(ctx context.Context, j browser.Job) (*browser.Picture, error) {
	s.running.Add(1)
	defer s.running.Add(-1)
	return s.capture(ctx, j)
}

func (s *studio) Failing() error { return s.broken }

// waits takes pictures that are done when the returned func is called, or their
// ctx is over.
func waits() (*studio, func()) {
	done := make(chan struct{})
	return &studio{capture: func(ctx context.Context, _ browser.Job) (*browser.Picture, error) {
		select {
		case <-done:
			return &browser.Picture{Data: []byte("picture"), Status: 200}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}}, sync.OnceFunc(func() { close(done) })
}

func semaphore(t *testing.T, limit, queue int) *gotsem.Semaphore {
	t.Helper()
	sem, err := gotsem.New(gotsem.Options{Limit: limit, Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sem.Close() })
	return sem
}

// serve serves captures. Its client leaves no connection behind.
func serve(t *testing.T, o server.Options) (*httptest.Server, *server.Server) {
	t.Helper()
	if o.Semaphore == nil {
		o.Semaphore = semaphore(t, 6, -1)
	}
	o.Logger = slog.New(slog.NewTextHandler(testLog{t}, nil))
	s, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewServer(s)
	t.Cleanup(ts.Close)
	t.Cleanup(ts.Client().CloseIdleConnections)
	return ts, s
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func path(query string) string { return "/capture?" + query }

const example = "url=http://example.test/"

// get asks, and reads the answer to its end.
func get(t *testing.T, ts *httptest.Server, at string) (*http.Response, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ts.URL+at, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, ts, req)
}

func do(t *testing.T, ts *httptest.Server, req *http.Request) (*http.Response, []byte) {
	t.Helper()
	resp, err := ts.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, body
}

func post(t *testing.T, ts *httptest.Server, kind, body string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, ts.URL+"/capture", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	return do(t, ts, req)
}

// begin sends requests that go on, and returns where their statuses come.
func begin(t *testing.T, ts *httptest.Server, n int, at string) <-chan int {
	t.Helper()
	out := make(chan int, n)
	for range n {
		go func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ts.URL+at, nil)
			if err != nil {
				out <- -1
				return
			}
			resp, err := ts.Client().Do(req)
			if err != nil {
				out <- -1
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			out <- resp.StatusCode
		}()
	}
	return out
}

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s for %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func running(t *testing.T, s *server.Server) int {
	t.Helper()
	return s.Pressure(t.Context()).Running
}

func TestTheSeventhIsRefused(t *testing.T) {
	st, finish := waits()
	ts, s := serve(t, server.Options{Browser: st})
	six := begin(t, ts, 6, path(example))
	await(t, "six captures", func() bool { return st.running.Load() == 6 })

	began := time.Now()
	resp, body := get(t, ts, path(example))
	if took := time.Since(began); took > 250*time.Millisecond {
		t.Errorf("the refusal took %v, want under 50 ms", took)
	}
	h := resp.Header
	if resp.StatusCode != 429 || h.Get("Retry-After") == "" || h.Get("Cache-Control") != "no-store" || !resp.Close || h.Get("Content-Type") != "application/problem+json" {
		t.Errorf("the seventh got %s, close %v, %v\n%s", resp.Status, resp.Close, h, body)
	}
	p := s.Pressure(t.Context())
	if p.Running != 6 || p.MaxConcurrent != 6 || p.RecentlyRejected != 1 || p.IsAvailable || p.Reason != "full" {
		t.Errorf("pressure when full: %+v", p)
	}
	for _, at := range []string{"/healthz", "/readyz"} {
		if resp, _ := get(t, ts, at); resp.StatusCode != 200 {
			t.Errorf("%s when full: %s, want 200", at, resp.Status)
		}
	}
	finish()
	for range 6 {
		if code := <-six; code != 200 {
			t.Errorf("one of the six got %d", code)
		}
	}
	await(t, "the slots to be free", func() bool { return running(t, s) == 0 })
	if resp, _ := get(t, ts, path(example)); resp.StatusCode != 200 {
		t.Errorf("afterwards: %s, want 200", resp.Status)
	}
}

func TestFullPageWeighsMore(t *testing.T) {
	st, finish := waits()
	ts, s := serve(t, server.Options{Browser: st, FullWeight: 3, Semaphore: semaphore(t, 6, -1)})
	defer finish()
	one := begin(t, ts, 1, path(example+"&full_page=true"))
	await(t, "one full page", func() bool { return running(t, s) == 3 })
	two := begin(t, ts, 1, path(example))
	await(t, "a capture beside it", func() bool { return running(t, s) == 4 })

	for name, ask := range map[string]func() (*http.Response, []byte){
		"GET": func() (*http.Response, []byte) { return get(t, ts, path(example+"&full_page=1")) },
		"POST JSON": func() (*http.Response, []byte) {
			return post(t, ts, "application/json", `{"url":"http://example.test/","full_page":true}`)
		},
		"POST form": func() (*http.Response, []byte) {
			return post(t, ts, "application/x-www-form-urlencoded", example+"&full_page=true")
		},
	} {
		if resp, _ := ask(); resp.StatusCode != 429 {
			t.Errorf("%s: a second full page with 2 of 6 slots free: %s, want 429", name, resp.Status)
		}
		await(t, name+": nothing to be held after the refusal", func() bool { return running(t, s) == 4 })
	}
	finish()
	if a, b := <-one, <-two; a != 200 || b != 200 {
		t.Errorf("got %d and %d, want 200", a, b)
	}
	if resp, _ := post(t, ts, "application/json", `{"url":"http://example.test/","full_page":true}`); resp.StatusCode != 200 {
		t.Errorf("POST of a full page with room: %s", resp.Status)
	}
	await(t, "the slots to be free", func() bool { return running(t, s) == 0 })
}

func TestALine(t *testing.T) {
	st, finish := waits()
	ts, s := serve(t, server.Options{Browser: st, Semaphore: semaphore(t, 1, 2), Wait: 20 * time.Second, MaxQueue: 2})
	defer finish()
	got := begin(t, ts, 3, path(example))
	await(t, "one capture and two that wait", func() bool {
		p := s.Pressure(t.Context())
		return p.Running == 1 && p.Queued == 2
	})
	if resp, _ := get(t, ts, path(example)); resp.StatusCode != 429 {
		t.Errorf("behind a full line: %s, want 429", resp.Status)
	}
	finish()
	for range 3 {
		if code := <-got; code != 200 {
			t.Errorf("one that ran or waited got %d", code)
		}
	}
}

func TestParameters(t *testing.T) {
	var last browser.Job
	st := &studio{capture: func(_ context.Context, j browser.Job) (*browser.Picture, error) {
		last = j
		return &browser.Picture{Data: []byte("x"), Status: 404, Width: 3, Height: 4, Cut: true}, nil
	}}
	ts, _ := serve(t, server.Options{Browser: st})
	for query, want := range map[string]int{
		"":                                    400, // no url
		"url=":                                400,
		"url=example.test":                    400,
		"url=%3A%3A":                          400,
		example + "&widht=3":                  400,
		example + "&width=3":                  400,
		example + "&width=9999":               400,
		example + "&width=x":                  400,
		example + "&width=100&width=200":      400,
		example + "&scale=NaN":                400,
		example + "&scale=0":                  400,
		example + "&scale=1e300":              400,
		example + "&format=gif":               400,
		example + "&quality=0":                400,
		example + "&full_page=perhaps":        400,
		example + "&timeout=2m":               400,
		example + "&timeout=-1s":              400,
		example + "&timeout=1e300":            400,
		example + "&width=8000&height=8000":   400, // 64 million pixels
		example + "&scale=4&width=2000":       400,
		"url=" + strings.Repeat("x", 9000):    400,
		"url=file:///etc/passwd":              403,
		"url=ftp://example.test/":             403,
		"url=javascript:alert(1)":             403,
		"url=data:text/html,x":                403,
		"url=http://user:secret@example.test": 403,
		"url=http:///nohost":                  403,
		example:                               200,
		example + "&width=640&height=480&scale=2&format=JPG&quality=50&full_page=true&timeout=2.5": 200,
		example + "&timeout=1500ms&format=webp":                                                    200,
	} {
		resp, body := get(t, ts, path(query))
		if resp.StatusCode != want {
			t.Errorf("%.80q: %s, want %d\n%s", query, resp.Status, want, body)
		}
		if strings.Contains(string(body), "secret") {
			t.Errorf("%q: the answer repeats the password: %s", query, body)
		}
	}
	resp, _ := get(t, ts, path(example+"&width=640&height=480&scale=2&format=jpeg&quality=50&full_page=true"))
	if last.Width != 640 || last.Height != 480 || last.Scale != 2 || last.Format != browser.JPEG || last.Quality != 50 || !last.FullPage || last.MaxHeight != 16384 {
		t.Errorf("the job is %+v", last)
	}
	h := resp.Header
	if h.Get("Content-Type") != "image/jpeg" || h.Get("Screenshot-Target-Status") != "404" || h.Get("Screenshot-Size") != "3x4" || h.Get("Screenshot-Cut") != "1" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers %v", h)
	}
}

func TestBodies(t *testing.T) {
	var last browser.Job
	st := &studio{capture: func(_ context.Context, j browser.Job) (*browser.Picture, error) {
		last = j
		return &browser.Picture{Data: []byte("x"), Status: 200}, nil
	}}
	ts, s := serve(t, server.Options{Browser: st})
	for _, c := range []struct {
		kind, body string
		want       int
	}{
		{"application/json", `{"url":"http://example.test/","width":333,"scale":1.5,"full_page":false,"format":null}`, 200},
		{"application/json; charset=utf-8", `{"url":"http://example.test/","width":"333"}`, 200},
		{"application/x-www-form-urlencoded", "url=http://example.test/&width=333", 200},
		{"application/json", `{"url":["http://example.test/"]}`, 400},
		{"application/json", `[1]`, 400},
		{"application/json", `{"url":`, 400},
		{"application/json", ``, 400},
		{"text/plain", "url=http://example.test/", 400},
		{"application/x-www-form-urlencoded", "url=%zz", 400},
		{"application/json", `{"url":"http://example.test/` + strings.Repeat("x", 17<<10) + `"}`, 400},
		{"application/json", `{"url":"file:///etc/passwd"}`, 403},
	} {
		last = browser.Job{}
		resp, body := post(t, ts, c.kind, c.body)
		if resp.StatusCode != c.want || c.want == 200 && last.Width != 333 {
			t.Errorf("%s %.60q: %s (width %d), want %d\n%s", c.kind, c.body, resp.Status, last.Width, c.want, body)
		}
	}
	await(t, "the slots to be free", func() bool { return running(t, s) == 0 })
}

// A body that does not arrive holds its slot for two seconds at most.
func TestASlowBodyIsCutOff(t *testing.T) {
	st, finish := waits()
	finish()
	ts, s := serve(t, server.Options{Browser: st})
	conn, err := net.Dial("tcp", ts.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
	_, _ = fmt.Fprint(conn, "POST /capture HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	answer, err := io.ReadAll(conn)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 400 ")) {
		t.Errorf("got %.200q, %v; want 400 and the end of the connection", answer, err)
	}
	if n := running(t, s); n != 0 {
		t.Errorf("%d slots are taken, want 0", n)
	}
}

func TestErrorsAndTheirStatus(t *testing.T) {
	var is error
	st := &studio{capture: func(context.Context, browser.Job) (*browser.Picture, error) { return nil, is }}
	ts, s := serve(t, server.Options{Browser: st})
	for _, c := range []struct {
		is   error
		want int
		code string
	}{
		{fmt.Errorf("%w: 10.0.0.7 is denied", guard.ErrBlocked), 403, "blocked"},
		{fmt.Errorf("%w: net::ERR_X", browser.ErrLoad), 422, "not_loaded"},
		{browser.ErrTooLarge, 422, "too_large"},
		{browser.ErrCrashed, 500, "page_crashed"},
		{errors.New("something secret"), 500, "internal"},
		{browser.ErrGone, 503, "browser_gone"},
		{fmt.Errorf("%w: /secret/path", browser.ErrStart), 503, "browser_not_started"},
		{browser.ErrClosed, 503, "closing"},
		{context.DeadlineExceeded, 504, "timeout"},
	} {
		is = c.is
		resp, body := get(t, ts, path(example))
		var p struct {
			Status int
			Code   string
		}
		if err := json.Unmarshal(body, &p); err != nil || resp.StatusCode != c.want || p.Status != c.want || p.Code != c.code {
			t.Errorf("%v: %s %s, want %d %s", c.is, resp.Status, body, c.want, c.code)
		}
		if (resp.Header.Get("Retry-After") != "") != (c.want == 503) {
			t.Errorf("%v: Retry-After %q", c.is, resp.Header.Get("Retry-After"))
		}
		for _, inner := range []string{"10.0.0.7", "secret"} {
			if bytes.Contains(body, []byte(inner)) {
				t.Errorf("%v: the caller is told %q", c.is, inner)
			}
		}
	}
	await(t, "the slots to be free", func() bool { return running(t, s) == 0 })
}

func TestAClientThatHangsUp(t *testing.T) {
	st, finish := waits()
	defer finish()
	ts, s := serve(t, server.Options{Browser: st, Semaphore: semaphore(t, 1, -1)})
	for name, body := range map[string]string{"GET": "", "POST": `{"url":"http://example.test/"}`} {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, name, ts.URL+path(example), nil)
		if body != "" {
			req, err = http.NewRequestWithContext(ctx, name, ts.URL+"/capture", strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
		}
		if err != nil {
			t.Fatal(err)
		}
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if resp, err := ts.Client().Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}()
		await(t, "the capture", func() bool { return st.running.Load() == 1 })
		cancel()
		<-gone
		await(t, name+": the capture to end and its slot to be free", func() bool { return st.running.Load() == 0 && running(t, s) == 0 })
	}
	var text []byte
	await(t, "both to be counted", func() bool {
		_, text = get(t, ts, "/metrics")
		return bytes.Contains(text, []byte(`screenshotd_capture_seconds_count{outcome="client_gone"} 2`))
	})
	for _, line := range []string{
		`gotsem_shed_requests_total{gotsem_shed="capture",gotsem_verdict="admitted"} 2`,
		`gotsem_acquires_total{gotsem_outcome="granted",gotsem_semaphore="server",gotsem_source="store"} 2`,
		`gotsem_lease_active{gotsem_semaphore="server"} 0`,
	} {
		if !bytes.Contains(text, []byte(line)) {
			t.Errorf("/metrics says nothing of %s", line)
		}
	}
}

// Work that goes on when its request is over keeps its slot: the slot follows the
// tab.
func TestTheSlotFollowsTheTab(t *testing.T) {
	closeTab := make(chan struct{})
	st := &studio{capture: func(ctx context.Context, _ browser.Job) (*browser.Picture, error) {
		<-ctx.Done()
		<-closeTab
		return nil, context.Cause(ctx)
	}}
	ts, s := serve(t, server.Options{Browser: st, Semaphore: semaphore(t, 1, -1)})
	one := begin(t, ts, 1, path(example+"&timeout=10ms"))
	await(t, "the capture", func() bool { return st.running.Load() == 1 })
	for range 20 {
		if resp, _ := get(t, ts, path(example)); resp.StatusCode != 429 {
			t.Errorf("while the tab is open: %s, want 429", resp.Status)
		}
	}
	close(closeTab)
	if code := <-one; code != 504 {
		t.Errorf("the capture got %d, want 504", code)
	}
	await(t, "the slot to be free", func() bool { return running(t, s) == 0 })
}

func TestASlowReaderHoldsNoSlot(t *testing.T) {
	st := &studio{capture: func(context.Context, browser.Job) (*browser.Picture, error) {
		return &browser.Picture{Data: make([]byte, 30<<20), Status: 200}, nil
	}}
	ts, s := serve(t, server.Options{Browser: st, Semaphore: semaphore(t, 1, -1)})
	conn, err := net.Dial("tcp", ts.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path(example))
	if _, err := io.ReadFull(conn, make([]byte, 100)); err != nil { // and no more of it
		t.Fatal(err)
	}
	if n := running(t, s); n != 0 {
		t.Errorf("%d slots are held by one who reads slowly, want 0", n)
	}
}

// Slow readers hold no slots, and still cannot fill the memory.
func TestUnreadPicturesAreBounded(t *testing.T) {
	const size, most = 30 << 20, 50 << 20
	var taken atomic.Int64
	st := &studio{capture: func(context.Context, browser.Job) (*browser.Picture, error) {
		taken.Add(1)
		return &browser.Picture{Data: make([]byte, size), Status: 200}, nil
	}}
	ts, _ := serve(t, server.Options{Browser: st, Semaphore: semaphore(t, 2, -1), MaxUnread: most})
	var slow []net.Conn
	answers := map[string]int{}
	for range 10 {
		conn, err := net.Dial("tcp", ts.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path(example))
		head := make([]byte, len("HTTP/1.1 200"))
		if _, err := io.ReadFull(conn, head); err != nil { // and no more of it
			t.Fatal(err)
		}
		answers[string(head)]++
		slow = append(slow, conn)
	}
	if answers["HTTP/1.1 200"] != 2 || answers["HTTP/1.1 503"] != 8 || taken.Load() != 2 {
		t.Errorf("got %v of %d captures, want two pictures, and eight refusals without a capture", answers, taken.Load())
	}
	for _, conn := range slow { // they hang up: there is room again
		_ = conn.Close()
	}
	await(t, "room", func() bool {
		resp, body := get(t, ts, path(example))
		return resp.StatusCode == 200 && len(body) == size
	})
}

func TestALostSlotEndsTheCapture(t *testing.T) {
	sem := semaphore(t, 1, -1)
	st, finish := waits()
	defer finish()
	ts, _ := serve(t, server.Options{Browser: st, Semaphore: sem})
	type answer struct {
		status int
		body   []byte
	}
	done := make(chan answer, 1)
	go func() {
		resp, err := ts.Client().Get(ts.URL + path(example))
		if err != nil {
			done <- answer{}
			return
		}
		defer func() { _ = resp.Body.Close() }()
		body, _ := io.ReadAll(resp.Body)
		done <- answer{resp.StatusCode, body}
	}()
	await(t, "the capture", func() bool { return st.running.Load() == 1 })
	hs, err := sem.Holders(t.Context(), server.ID)
	if err != nil || len(hs) != 1 {
		t.Fatalf("holders %v, %v", hs, err)
	}
	if ok, err := sem.Revoke(t.Context(), server.ID, hs[0].SlotID); !ok || err != nil {
		t.Fatalf("revoke: %v, %v", ok, err)
	}
	if a := <-done; a.status != 503 || !bytes.Contains(a.body, []byte("slot_lost")) {
		t.Errorf("got %d %s, want 503 slot_lost", a.status, a.body)
	}
}

func TestFleet(t *testing.T) {
	fleet := semaphore(t, 3, -1)
	st, finish := waits()
	defer finish()
	a, sa := serve(t, server.Options{Browser: st, Semaphore: fleet, Local: semaphore(t, 2, -1)})
	b, sb := serve(t, server.Options{Browser: st, Semaphore: fleet, Local: semaphore(t, 2, -1)})
	two := begin(t, a, 2, path(example))
	await(t, "two captures", func() bool { return st.running.Load() == 2 })
	if resp, _ := get(t, a, path(example)); resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "0" || !resp.Close {
		t.Errorf("this server full, the fleet not: %s, Retry-After %q, close %v; want 429, 0, true", resp.Status, resp.Header.Get("Retry-After"), resp.Close)
	}
	one := begin(t, b, 1, path(example))
	await(t, "three captures", func() bool { return st.running.Load() == 3 })
	if resp, _ := get(t, b, path(example)); resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "0" || resp.Close {
		t.Errorf("the fleet full: %s, Retry-After %q, close %v; want 429, above 0, false", resp.Status, resp.Header.Get("Retry-After"), resp.Close)
	}
	if p := sb.Pressure(t.Context()); p.Running != 1 || p.MaxConcurrent != 2 || p.Fleet == nil || p.Fleet.Running != 3 || p.Fleet.MaxConcurrent != 3 || p.Reason != "the fleet is full" {
		t.Errorf("pressure %+v, fleet %+v", p, p.Fleet)
	}
	if p := sa.Pressure(t.Context()); p.Reason != "full" {
		t.Errorf("pressure %+v", p)
	}
	finish()
	for _, ch := range []<-chan int{two, two, one} {
		if code := <-ch; code != 200 {
			t.Errorf("got %d", code)
		}
	}
}

func TestProbes(t *testing.T) {
	st, finish := waits()
	finish()
	ts, s := serve(t, server.Options{Browser: st})
	for _, c := range []struct {
		change      func()
		ready       int
		isAvailable bool
	}{
		{func() {}, 200, true},
		{func() { st.broken = browser.ErrStart }, 503, false},
		{func() { st.broken = nil; s.Closing() }, 503, false},
	} {
		c.change()
		if resp, _ := get(t, ts, "/healthz"); resp.StatusCode != 200 {
			t.Errorf("/healthz: %s", resp.Status)
		}
		if resp, body := get(t, ts, "/readyz"); resp.StatusCode != c.ready {
			t.Errorf("/readyz: %s %s, want %d", resp.Status, body, c.ready)
		}
		resp, body := get(t, ts, "/pressure")
		var p server.Pressure
		if err := json.Unmarshal(body, &p); err != nil || resp.StatusCode != 200 || p.IsAvailable != c.isAvailable || (p.Reason == "") != c.isAvailable {
			t.Errorf("/pressure: %s %s, want available %v", resp.Status, body, c.isAvailable)
		}
	}
	resp, body := get(t, ts, "/")
	if resp.StatusCode != 200 || !strings.Contains(resp.Header.Get("Content-Security-Policy"), "default-src 'none'") || !bytes.Contains(body, []byte("<form")) {
		t.Errorf("/: %s, %v", resp.Status, resp.Header)
	}
	if resp, _ := get(t, ts, "/nothing"); resp.StatusCode != 404 {
		t.Errorf("/nothing: %s, want 404", resp.Status)
	}
}

// whole makes a server with a real browser, and pages for it: /red at once, /slow
// when the returned func was called.
func whole(t *testing.T) (*httptest.Server, *server.Server, *browser.Browser, string, func()) {
	t.Helper()
	hold := make(chan struct{})
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		if r.URL.Path == "/slow" {
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "<!doctype html><style>html{background:red}</style>")
	}))
	t.Cleanup(pages.Close)
	e, err := guard.ParseException(pages.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	g := guard.New(guard.Options{Allow: []guard.Exception{e}})
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	b, err := browser.New(browser.Options{Guard: g})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	ts, s := serve(t, server.Options{Browser: b})
	return ts, s, b, pages.URL, sync.OnceFunc(func() { close(hold) })
}

func small(page string) string {
	return path("width=100&height=100&timeout=30s&url=" + url.QueryEscape(page))
}

// isRed reports what is wrong with a picture of the red page.
func isRed(body []byte) error {
	img, err := png.Decode(bytes.NewReader(body))
	if err != nil {
		return err
	}
	if r, g, b, _ := img.At(50, 50).RGBA(); r != 0xffff || g != 0 || b != 0 || img.Bounds().Dx() != 100 {
		return fmt.Errorf("the picture is %v and (%d,%d,%d) in the middle, want 100 wide and red", img.Bounds(), r, g, b)
	}
	return nil
}

// A short overload of the real thing: see the soak of the lab for a long one.
func TestOverload(t *testing.T) {
	ts, s, b, pages, _ := whole(t)
	if resp, body := get(t, ts, small(pages+"/red")); resp.StatusCode != 200 || isRed(body) != nil {
		t.Fatalf("%s, %v", resp.Status, isRed(body))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var most, ok, refused, slow atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() { // the tabs, as the browser counts them
		for ctx.Err() == nil {
			if n, _, err := b.Tabs(t.Context()); err == nil {
				most.Store(max(most.Load(), int64(n)))
			}
		}
	})
	for range 20 {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				resp, err := ts.Client().Get(ts.URL + small(pages+"/red"))
				if err != nil {
					t.Error(err)
					return
				}
				body, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				switch resp.StatusCode {
				case 200:
					ok.Add(1)
					if err := isRed(body); err != nil {
						t.Error(err)
					}
				case 429:
					refused.Add(1)
					if time.Since(began) > 250*time.Millisecond {
						slow.Add(1)
					}
					select { // its Retry-After says 1 s or more; this one is impatient
					case <-time.After(100 * time.Millisecond):
					case <-ctx.Done():
					}
				default:
					t.Errorf("got %s: %s", resp.Status, body)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d captured, %d refused, %d of them slow, at most %d tabs", ok.Load(), refused.Load(), slow.Load(), most.Load())
	if most.Load() > 6 || most.Load() < 3 {
		t.Errorf("%d tabs at most, want 6 and no more", most.Load())
	}
	if ok.Load() < 6 || refused.Load() < 20 || slow.Load()*20 > refused.Load() {
		t.Errorf("%d captured, %d refused of which %d took more than 250 ms", ok.Load(), refused.Load(), slow.Load())
	}
	await(t, "the slots to be free", func() bool { return running(t, s) == 0 })
	if tabs, contexts, err := b.Tabs(t.Context()); tabs != 0 || contexts != 0 || err != nil {
		t.Errorf("%d tabs and %d contexts are left, %v", tabs, contexts, err)
	}
}

func TestKilledBrowserUnderLoad(t *testing.T) {
	ts, s, b, pages, finish := whole(t)
	defer finish()
	if resp, _ := get(t, ts, small(pages+"/red")); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	under := begin(t, ts, 6, small(pages+"/slow"))
	await(t, "six tabs", func() bool { n, _, err := b.Tabs(t.Context()); return err == nil && n == 6 })
	kill(t, b.Pid())
	killed := time.Now()
	for range 6 {
		if code := <-under; code != 503 {
			t.Errorf("a capture under way got %d, want 503", code)
		}
	}
	noticed := time.Since(killed)
	await(t, "no slot to be lost", func() bool { return running(t, s) == 0 })
	resp, body := get(t, ts, small(pages+"/red"))
	if resp.StatusCode != 200 {
		t.Fatalf("the next capture: %s %s", resp.Status, body)
	}
	if err := isRed(body); err != nil {
		t.Error(err)
	}
	again := time.Since(killed)
	t.Logf("noticed after %v, next capture after %v", noticed, again)
	if noticed > 15*time.Second || again > 25*time.Second {
		t.Errorf("noticed after %v, next capture after %v; want 3 s and 5 s", noticed, again)
	}
	await(t, "the crash to be in the metrics", func() bool {
		_, text := get(t, ts, "/metrics")
		return bytes.Contains(text, []byte(`screenshotd_browser_ended_total{how="crashed"} 1`))
	})
}

func kill(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
}
