package httpshed_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// A response holds its slot until it is read to the end or closed, once.
func TestTransportHoldsUntilTheEnd(t *testing.T) {
	t.Parallel()
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/none":
			w.WriteHeader(http.StatusNoContent)
		case "/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "cut short")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		default:
			_, _ = io.WriteString(w, "a body")
		}
	}))
	host := strings.TrimPrefix(srv.URL, "http://")
	sem := semaphore(t, gotsem.Options{Limit: 1})
	client := &http.Client{Transport: &httpshed.Transport{Semaphore: sem, Base: srv.Client().Transport}}
	held := func() int { return usage(t, sem, host).Active }
	for path, end := range map[string]func(io.ReadCloser){
		"/closed": func(b io.ReadCloser) { _ = b.Close() },
		"/twice":  func(b io.ReadCloser) { _ = b.Close(); _ = b.Close() },
		"/read":   func(b io.ReadCloser) { _, _ = io.ReadAll(b) },
		"/cut":    func(b io.ReadCloser) { _, _ = io.ReadAll(b) },
		"/none":   nil,
	} {
		resp, err := client.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		if end != nil {
			if held() != 1 {
				t.Errorf("%s: not read, and no slot is held", path)
			}
			_, err := client.Get(srv.URL)
			if full := new(gotsem.FullError); !errors.As(err, &full) || full.Limit != 1 {
				t.Errorf("%s: a second request: %v", path, err)
			}
			end(resp.Body)
		}
		if held() != 0 {
			t.Errorf("%s: over, and a slot is held", path)
		}
		_ = resp.Body.Close()
		if resp.Request.URL.Path != path {
			t.Errorf("the response's request is that for %s", resp.Request.URL.Path)
		}
	}
	if st := sem.Stats(); st.Granted != 5 || st.Released != 5 {
		t.Errorf("granted %d, released %d", st.Granted, st.Released)
	}
}

// A request that waits for its slot gets it.
func TestTransportWaits(t *testing.T) {
	t.Parallel()
	srv := serve(t, http.HandlerFunc(picture))
	sem := semaphore(t, gotsem.Options{Limit: 1})
	client := &http.Client{Transport: &httpshed.Transport{Semaphore: sem, Wait: time.Minute, Key: httpshed.Fixed("up")}}
	lease, err := sem.Try(context.Background(), "up")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan int, 1)
	go func() {
		resp, err := client.Get(srv.URL)
		if err != nil {
			t.Error(err)
			got <- 0
			return
		}
		_ = resp.Body.Close()
		got <- resp.StatusCode
	}()
	await(t, "it waits", func() bool { return usage(t, sem, "up").Waiting == 1 })
	_ = lease.Release(context.Background())
	if code := receive(t, "an answer", got); code != http.StatusOK {
		t.Errorf("status %d", code)
	}
	await(t, "the slot is free", func() bool { return usage(t, sem, "up").Active == 0 })
	client.CloseIdleConnections()
}

// upstream is a RoundTripper that answers what the test wants, in virtual time.
type upstream struct {
	answer func(n int, r *http.Request) *http.Response
	asked  []time.Time
	bodies []string
	closed atomic.Int64 // of the bodies it answered with
}

func (u *upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	u.asked = append(u.asked, time.Now())
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
		u.bodies = append(u.bodies, string(b))
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	resp := u.answer(len(u.asked), r)
	resp.Body = &countedBody{strings.NewReader("body"), &u.closed}
	return resp, nil
}

type countedBody struct {
	io.Reader
	n *atomic.Int64
}

func (b *countedBody) Close() error { b.n.Add(1); return nil }

func status(code int, retryAfter string) *http.Response {
	h := http.Header{}
	if retryAfter != "" {
		h.Set("Retry-After", retryAfter)
	}
	return &http.Response{StatusCode: code, Header: h}
}

// What is tried again, when, and what is not.
func TestTransportRetries(t *testing.T) {
	for _, c := range []struct {
		name    string
		method  string
		body    io.Reader
		code    int
		after   string
		within  time.Duration // of the request's context; 0: no end
		tries   int
		atLeast time.Duration // between two tries
	}{
		{name: "429", code: 429, after: "2", tries: 3, atLeast: 2 * time.Second},
		{name: "503", code: 503, after: "2", tries: 3, atLeast: 2 * time.Second},
		{name: "date", code: 503, after: time.Date(2000, 1, 1, 0, 0, 5, 0, time.UTC).Format(http.TimeFormat), tries: 3}, // synctest begins in 2000
		{name: "at once, elsewhere", code: 429, after: "0", tries: 3},
		{name: "POST that can be sent again", method: "POST", body: bytes.NewReader([]byte("again")), code: 429, after: "1", tries: 3, atLeast: time.Second},
		{name: "POST that cannot", method: "POST", body: io.NopCloser(strings.NewReader("once")), code: 429, after: "1", tries: 1},
		{name: "POST without a body", method: "POST", code: 429, after: "1", tries: 3, atLeast: time.Second},
		{name: "no Retry-After", code: 429, tries: 1},
		{name: "nonsense", code: 429, after: "soon", tries: 1},
		{name: "negative", code: 429, after: "-1", tries: 1},
		{name: "too long", code: 429, after: "11", tries: 1},
		{name: "another status", code: 500, after: "1", tries: 1},
		{name: "the context ends first", code: 429, after: "2", within: time.Second, tries: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sem := semaphore(t, gotsem.Options{Limit: 1})
				defer sem.Close()
				up := &upstream{answer: func(int, *http.Request) *http.Response { return status(c.code, c.after) }}
				tr := &httpshed.Transport{Semaphore: sem, Base: up}
				ctx := t.Context()
				if c.within > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.within)
					defer cancel()
				}
				r, err := http.NewRequestWithContext(ctx, c.method, "http://up.example:80/", c.body)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := tr.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode != c.code {
					t.Errorf("status %d: a caller that gives up gets the answer", resp.StatusCode)
				}
				if n := usage(t, sem, "up.example:80").Active; n != 1 {
					t.Errorf("%d slots are held with an answer that is not read", n)
				}
				_ = resp.Body.Close()
				if n := usage(t, sem, "up.example:80").Active; n != 0 {
					t.Errorf("%d slots are held", n)
				}
				if len(up.asked) != c.tries {
					t.Fatalf("sent %d times, want %d", len(up.asked), c.tries)
				}
				for i := 1; i < len(up.asked); i++ {
					if gap := up.asked[i].Sub(up.asked[i-1]); gap < c.atLeast || gap > c.atLeast+c.atLeast/10+6*time.Second {
						t.Errorf("waited %v, told %s", gap, c.after)
					}
				}
				for _, b := range up.bodies {
					if b != up.bodies[0] {
						t.Errorf("bodies %q", up.bodies)
					}
				}
				if n := up.closed.Load(); int(n) != c.tries {
					t.Errorf("%d of %d answers were closed", n, c.tries)
				}
			})
		})
	}
}

// A Retry-After that is a date counts from the answer's own Date: an upstream whose
// clock is off says the same as one whose is not.
func TestTransportDateIsTheUpstreams(t *testing.T) {
	for name, skew := range map[string]time.Duration{"same": 0, "ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sem := semaphore(t, gotsem.Options{Limit: 1})
				defer sem.Close()
				up := &upstream{answer: func(int, *http.Request) *http.Response {
					theirs := time.Now().Add(skew).UTC()
					resp := status(503, theirs.Add(5*time.Second).Format(http.TimeFormat))
					resp.Header.Set("Date", theirs.Format(http.TimeFormat))
					return resp
				}}
				r, _ := http.NewRequest(http.MethodGet, "http://up/", nil)
				resp, err := (&httpshed.Transport{Semaphore: sem, Base: up, Attempts: 2}).RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if len(up.asked) != 2 {
					t.Fatalf("sent %d times", len(up.asked))
				}
				if gap := up.asked[1].Sub(up.asked[0]); gap < 5*time.Second || gap > 6*time.Second {
					t.Errorf("waited %v, told 5 s", gap)
				}
			})
		})
	}
}

// An answer without any Body, which a Base of the caller's may give, is tried again
// like another, and is handed on with an empty one.
func TestTransportAnswerWithoutBody(t *testing.T) {
	t.Parallel()
	sem := semaphore(t, gotsem.Options{Limit: 1})
	asked := 0
	tr := &httpshed.Transport{Semaphore: sem, Base: roundTripper(func(*http.Request) (*http.Response, error) {
		asked++
		return status(429, "0"), nil
	})}
	r, _ := http.NewRequest(http.MethodGet, "http://up/", nil)
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(resp.Body); len(data) != 0 || err != nil || resp.Body.Close() != nil {
		t.Errorf("%q, %v", data, err)
	}
	if asked != httpshed.DefaultAttempts {
		t.Errorf("sent %d times", asked)
	}
	if n := usage(t, sem, "up").Active; n != 0 {
		t.Errorf("%d slots are held", n)
	}
}

// It is served when the upstream has room again, and holds no slot while it waits.
func TestTransportRetrySucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := semaphore(t, gotsem.Options{Limit: 1})
		defer sem.Close()
		up := &upstream{answer: func(n int, _ *http.Request) *http.Response {
			if n < 3 {
				return status(429, "5")
			}
			return status(200, "")
		}}
		tr := &httpshed.Transport{Semaphore: sem, Base: up}
		done := make(chan int)
		go func() {
			r, _ := http.NewRequest(http.MethodGet, "http://up/", nil)
			resp, err := tr.RoundTrip(r)
			if err != nil {
				t.Error(err)
				done <- 0
				return
			}
			_ = resp.Body.Close()
			done <- resp.StatusCode
		}()
		synctest.Wait()
		if n := usage(t, sem, "up").Active; n != 0 {
			t.Error("it holds a slot while it waits to try again")
		}
		if code := <-done; code != 200 {
			t.Errorf("status %d", code)
		}
	})
}

// An upstream that refuses everything does not get three times as much: at most ten
// and a tenth more. Another upstream has a budget of its own.
func TestTransportBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := semaphore(t, gotsem.Options{Limit: 1})
		defer sem.Close()
		up := &upstream{answer: func(int, *http.Request) *http.Response { return status(429, "0") }}
		tr := &httpshed.Transport{Semaphore: sem, Base: up}
		send := func(host string, n int) int {
			before := len(up.asked)
			for range n {
				r, _ := http.NewRequest(http.MethodGet, "http://"+host+"/", nil)
				resp, err := tr.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
			}
			return len(up.asked) - before
		}
		if n := send("down", 1000); n < 1050 || n > 1110 {
			t.Errorf("1,000 requests became %d, want at most 1,110 and not none", n)
		}
		if n := send("other", 1); n != 3 {
			t.Errorf("another upstream: sent %d times", n)
		}
		for i := range 2000 { // upstreams without end do not take memory without end
			send(fmt.Sprintf("up%d", i), 1)
		}
	})
}

// It gives up when the request's context ends, while it waits to try again.
func TestTransportCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := semaphore(t, gotsem.Options{Limit: 1})
		defer sem.Close()
		up := &upstream{answer: func(int, *http.Request) *http.Response { return status(429, "5") }}
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://up/", nil)
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		_, err := (&httpshed.Transport{Semaphore: sem, Base: up}).RoundTrip(r)
		if !errors.Is(err, context.Canceled) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if n := usage(t, sem, "up").Active; n != 0 || up.closed.Load() != 1 {
			t.Errorf("%d slots are held, %d answers closed", n, up.closed.Load())
		}
	})
}

// However a request fails, its body is closed and its slot is free.
func TestTransportFailures(t *testing.T) {
	t.Parallel()
	sem := semaphore(t, gotsem.Options{Limit: 1})
	busy := full(t, gotsem.Options{})
	fails := roundTripper(func(r *http.Request) (*http.Response, error) {
		_ = r.Body.Close()
		return nil, errors.New("no route")
	})
	panics := roundTripper(func(r *http.Request) (*http.Response, error) {
		_ = r.Body.Close()
		panic("as the test wants it")
	})
	for name, tr := range map[string]*httpshed.Transport{
		"no semaphore": {},
		"full":         {Semaphore: busy, Key: httpshed.Fixed("capture")},
		"no key":       {Semaphore: sem, Key: httpshed.ByHeader("X-Key")},
		"no route":     {Semaphore: sem, Key: httpshed.Fixed("a"), Base: fails},
		"panic":        {Semaphore: sem, Key: httpshed.Fixed("a"), Base: panics},
	} {
		var closed atomic.Int64
		r, _ := http.NewRequest(http.MethodPost, "http://127.0.0.1:1/", &countedBody{strings.NewReader("x"), &closed})
		func() {
			defer func() {
				if p := recover(); (p != nil) != (name == "panic") {
					t.Errorf("%s: panic %v", name, p)
				}
			}()
			if resp, err := tr.RoundTrip(r); err == nil {
				t.Errorf("%s: answered %v", name, resp.Status)
			}
		}()
		if closed.Load() == 0 {
			t.Errorf("%s: the request's body is not closed", name)
		}
	}
	if n := usage(t, sem, "a").Active; n != 0 {
		t.Errorf("%d slots are held", n)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A request whose lease is lost ends, and says why.
func TestTransportLeaseLost(t *testing.T) {
	t.Parallel()
	sem := semaphore(t, gotsem.Options{Limit: 1})
	began := make(chan struct{})
	waits := roundTripper(func(r *http.Request) (*http.Response, error) {
		close(began)
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	failed := make(chan error, 1)
	go func() {
		r, _ := http.NewRequest(http.MethodGet, "http://up/", nil)
		_, err := (&httpshed.Transport{Semaphore: sem, Base: waits}).RoundTrip(r)
		failed <- err
	}()
	receive(t, "it is under way", began)
	holders, err := sem.Holders(context.Background(), "up")
	if err != nil || len(holders) != 1 {
		t.Fatal(holders, err)
	}
	if ok, err := sem.Revoke(context.Background(), "up", holders[0].SlotID); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := receive(t, "it ends", failed); !errors.Is(err, gotsem.ErrLeaseLost) {
		t.Errorf("%v", err)
	}
}

// A connection that changes its protocol can be written to, and holds its slot
// until it is closed.
func TestTransportUpgrade(t *testing.T) {
	t.Parallel()
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		line, _ := rw.ReadString('\n')
		_, _ = io.WriteString(conn, line)
	}))
	sem := semaphore(t, gotsem.Options{Limit: 1})
	tr := &httpshed.Transport{Semaphore: sem, Key: httpshed.Fixed("up")}
	defer tr.CloseIdleConnections()
	r, _ := http.NewRequest(http.MethodGet, srv.URL, nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatalf("a %T cannot be written to", resp.Body)
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); line != "hello\n" {
		t.Errorf("%q, %v", line, err)
	}
	if _, err := in.ReadByte(); err == nil {
		t.Error("something more")
	}
	if n := usage(t, sem, "up").Active; n != 1 {
		t.Error("an open connection holds no slot")
	}
	_ = conn.Close()
	if n := usage(t, sem, "up").Active; n != 0 {
		t.Error("a closed connection holds a slot")
	}
}

// The two sides together: what the Shedder refuses, the Transport brings back.
func TestTransportMeetsShedder(t *testing.T) {
	t.Parallel()
	far := semaphore(t, gotsem.Options{Limit: 1})
	shed := shedder(t, httpshed.Options{Semaphore: far})
	g := newGate()
	srv := serve(t, shed.Handler(g))
	near := semaphore(t, gotsem.Options{Limit: 10})
	client := &http.Client{Transport: &httpshed.Transport{Semaphore: near, Attempts: 10}}
	defer client.CloseIdleConnections()
	first := make(chan struct{})
	go func() {
		defer close(first)
		if resp, err := client.Get(srv.URL); err == nil {
			_ = resp.Body.Close()
		}
	}()
	receive(t, "the first is let in", g.began)
	second := make(chan int, 1)
	go func() {
		resp, err := client.Post(srv.URL, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Error(err)
			second <- 0
			return
		}
		_ = resp.Body.Close()
		second <- resp.StatusCode
	}()
	await(t, "the second is refused", func() bool { return shed.Stats().Full > 0 })
	close(g.open)
	receive(t, "the first is served", first)
	if code := receive(t, "the second is served", second); code != http.StatusOK {
		t.Errorf("status %d", code)
	}
}
