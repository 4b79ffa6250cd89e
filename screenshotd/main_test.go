package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"go.uber.org/goleak"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parse reads a command line as main does.
func parse(t *testing.T, args ...string) (*cli, error) {
	t.Helper()
	c := new(cli)
	p, err := newParser(c, kong.Exit(func(int) { t.Fatal("it exits") }))
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Parse(args)
	return c, err
}

func TestFlags(t *testing.T) {
	c, err := parse(t)
	if err != nil || c.Serve.Max != 6 || c.Serve.Queue != 0 || c.Serve.Status != 429 || c.Serve.Listen != "127.0.0.1:7080" {
		t.Errorf("defaults: %+v, %v", c.Serve, err)
	}
	t.Setenv("SCREENSHOTD_MAX", "3")
	t.Setenv("SCREENSHOTD_ALLOW_TARGET", "10.0.0.0/8,192.168.1.1:8080")
	if c, err = parse(t); err != nil || c.Serve.Max != 3 || len(c.Serve.AllowTarget) != 2 {
		t.Errorf("from the environment: %+v, %v", c.Serve, err)
	}
	for _, args := range []string{
		"--max=0", "--full-weight=4", "--full-weight=0", "--queue=3", "--wait=1s", "--queue=-1 --wait=1s", "--status=200",
		"--fleet-max=9", "--redis=redis://h --fleet-max=1", "--timeout=2m", "--timeout=0s", "--max-pixels=0", "--drain=-1s", "--max-unread=0", "--outage=never",
	} {
		if _, err := parse(t, strings.Fields(args)...); err == nil {
			t.Errorf("%s was taken", args)
		}
	}
}

// The button takes slots from all who share them.
func TestOverloadIsOfferedWhereTheServiceIsTriedOut(t *testing.T) {
	for args, want := range map[string]bool{
		"": true, "--listen=[::1]:80": true, "--listen=localhost:80": true, "--overload=no": false,
		"--listen=:80": false, "--listen=0.0.0.0:80": false, "--listen=10.0.0.1:80": false, "--redis=redis://h": false,
		"--listen=:80 --overload=yes": true,
	} {
		if c, err := parse(t, strings.Fields(args)...); err != nil || c.Serve.overload() != want {
			t.Errorf("%q: offered %v, %v; want %v", args, !want, err, want)
		}
	}
}

func TestARedisPasswordIsNotTold(t *testing.T) {
	var log bytes.Buffer
	c := serveCmd{Max: 1, Redis: "redis://user:canary@host:notaport/"}
	_, err := c.semaphores(slog.New(slog.NewTextHandler(&log, nil)))
	if err == nil || strings.Contains(err.Error()+log.String(), "canary") {
		t.Errorf("got %v, log %s", err, &log)
	}
}

// start runs the service until the test ends, or stop is called.
func start(t *testing.T, args ...string) (addr string, stop func() error) {
	t.Helper()
	c, err := parse(t, append([]string{"--listen=127.0.0.1:0", "--drain=0s"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	at, ended := make(chan string, 1), make(chan error, 1)
	c.Serve.ready = func(addr string) { at <- addr }
	go func() { ended <- c.Serve.Run(ctx, slog.New(slog.DiscardHandler)) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = stop() })
	select {
	case addr = <-at:
		return addr, stop
	case err := <-ended:
		t.Fatal(err)
		return "", nil
	}
}

// pages serves a page that is there when the returned func was called.
func pages(t *testing.T) (s *httptest.Server, asked chan struct{}, open func()) {
	t.Helper()
	gate := make(chan struct{})
	asked = make(chan struct{}, 100)
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-gate:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "<!doctype html>hello")
	}))
	t.Cleanup(s.Close)
	open = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	return s, asked, open
}

type answer struct {
	status int
	body   []byte
	err    error
}

func ask(addr, page string) answer {
	resp, err := http.Get("http://" + addr + "/capture?timeout=40s&width=100&height=100&url=" + url.QueryEscape(page))
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	defer http.DefaultClient.CloseIdleConnections()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, body, err}
}

func TestCapturesUnderWayMayFinish(t *testing.T) {
	page, asked, open := pages(t)
	addr, stop := start(t, "--allow-target="+page.Listener.Addr().String())
	got := make(chan answer, 1)
	go func() { got <- ask(addr, page.URL) }()
	<-asked
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	await(t, "no more to be taken", func() bool {
		a := ask(addr, page.URL)
		return a.err != nil
	})
	open()
	if a := <-got; a.status != 200 || !bytes.HasPrefix(a.body, []byte("\x89PNG")) {
		t.Errorf("the capture under way got %d %v %.80q", a.status, a.err, a.body)
	}
	if err := <-stopped; err != nil {
		t.Errorf("stopping: %v", err)
	}
}

// A balancer that asks /readyz is told, over a new connection, before none is taken any
// more.
func TestStoppingIsSeenBeforeTheListenerCloses(t *testing.T) {
	page, _, open := pages(t)
	open()
	addr, stop := start(t, "--allow-target="+page.Listener.Addr().String(), "--drain=2s")
	defer http.DefaultClient.CloseIdleConnections()
	ready := func() (int, bool) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, false
		}
		_ = resp.Body.Close()
		return resp.StatusCode, true
	}
	if code, _ := ready(); code != 200 {
		t.Fatalf("ready: %d", code)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	var seen, served bool
	await(t, "the listener to close", func() bool {
		code, there := ready()
		if code == 503 && !served {
			seen = true
			served = ask(addr, page.URL).status == 200
		}
		return !there
	})
	if !seen || !served {
		t.Errorf("told that it stops: %v; a capture that comes then is taken: %v; want both", seen, served)
	}
	if err := <-stopped; err != nil {
		t.Errorf("stopping: %v", err)
	}
}

func TestCapturesThatDoNotFinishAreCutOff(t *testing.T) {
	page, asked, _ := pages(t)
	addr, stop := start(t, "--allow-target="+page.Listener.Addr().String(), "--shutdown-timeout=100ms")
	got := make(chan answer, 1)
	go func() { got <- ask(addr, page.URL) }()
	<-asked
	if err := stop(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stopping: %v, want that captures were cut off", err)
	}
	if a := <-got; a.status == 200 {
		t.Errorf("the capture got %d", a.status)
	}
}

// Two servers on one Redis take three captures together.
func TestFleet(t *testing.T) {
	redis := redistest.Start(t)
	page, asked, open := pages(t)
	flags := []string{
		"--allow-target=" + page.Listener.Addr().String(), "--redis=redis://" + redis.Addr(), "--fleet-max=3", "--max=2",
	}
	a, stopA := start(t, flags...)
	b, _ := start(t, flags...)
	got := make(chan answer, 3)
	for _, addr := range []string{a, a, b} {
		go func() { got <- ask(addr, page.URL) }()
		select {
		case <-asked:
		case x := <-got:
			t.Fatalf("one of three got %d %v %s", x.status, x.err, x.body)
		}
	}
	for _, addr := range []string{a, b} {
		if x := ask(addr, page.URL); x.status != 429 {
			t.Errorf("the fourth got %d %v %s, want 429", x.status, x.err, x.body)
		}
	}
	open()
	for range 3 {
		if x := <-got; x.status != 200 {
			t.Errorf("one of three got %d %v %s", x.status, x.err, x.body)
		}
	}
	if err := stopA(); err != nil {
		t.Error(err)
	}
	if x := ask(b, page.URL); x.status != 200 {
		t.Errorf("afterwards: %d %v %s", x.status, x.err, x.body)
	}
}

func TestNoBrowserIsSaidAtOnce(t *testing.T) {
	c, err := parse(t, "--chromium=/nowhere/chromium")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Serve.Run(t.Context(), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "apt-get install chromium-headless-shell") {
		t.Errorf("got %v, want what to install", err)
	}
}

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// The README's table of flags must name every flag.
func TestReadmeNamesEveryFlag(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	p, err := newParser(new(cli))
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range p.Model.Children {
		if node.Name != "serve" {
			continue
		}
		for _, f := range node.Flags {
			if !strings.Contains(string(text), "`--"+f.Name+"`") {
				t.Errorf("README.md does not name --%s", f.Name)
			}
		}
	}
}
