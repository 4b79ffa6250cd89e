package httpshed_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// patience is how long an event is awaited. None of them takes long; the machine
// may be busy.
const patience = 20 * time.Second

// long reports whether the runs that stand for minutes are to take minutes.
func long() bool { return os.Getenv("GOTSEM_LONG") != "" }

// full returns a semaphore of one slot that is taken.
func full(tb testing.TB, o gotsem.Options) *gotsem.Semaphore {
	o.Limit = 1
	sem := semaphore(tb, o)
	if _, err := sem.Try(context.Background(), "capture"); err != nil {
		tb.Fatal(err)
	}
	return sem
}

func semaphore(tb testing.TB, o gotsem.Options) *gotsem.Semaphore {
	tb.Helper()
	sem, err := gotsem.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = sem.Close() })
	return sem
}

func shedder(tb testing.TB, o httpshed.Options) *httpshed.Shedder {
	tb.Helper()
	if o.Key == nil {
		o.Key = httpshed.Fixed("capture")
	}
	shed, err := httpshed.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return shed
}

// await waits until cond holds.
func await(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	ends := time.After(patience)
	for !cond() {
		select {
		case <-tick.C:
		case <-ends:
			tb.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// receive waits for something to be sent.
func receive[T any](tb testing.TB, what string, c <-chan T) T {
	tb.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		tb.Fatalf("not within %v: %s", patience, what)
		panic("unreachable")
	}
}

func usage(tb testing.TB, sem *gotsem.Semaphore, id string) gotsem.Usage {
	tb.Helper()
	u, err := sem.Usage(context.Background(), id)
	if err != nil {
		tb.Fatal(err)
	}
	return u
}

// serve starts a server that ends with the test.
func serve(tb testing.TB, h http.Handler) *httptest.Server {
	tb.Helper()
	srv := httptest.NewServer(h)
	tb.Cleanup(srv.Close)
	return srv
}

// serveH2 starts one that speaks HTTP/2 over TLS; its Client does too.
func serveH2(tb testing.TB, h http.Handler) *httptest.Server {
	tb.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // a client may be dialling when the test ends
	srv.StartTLS()
	tb.Cleanup(srv.Close)
	return srv
}

// answered is an answer, read to its end.
type answered struct {
	*http.Response
	body string
}

func ask(tb testing.TB, c *http.Client, r *http.Request) answered {
	tb.Helper()
	resp, err := c.Do(r)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return answered{resp, string(body)}
}

func get(tb testing.TB, c *http.Client, url string) answered {
	tb.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return ask(tb, c, r)
}

// dial connects to srv without a client's manners.
func dial(tb testing.TB, srv *httptest.Server) (net.Conn, *bufio.Reader) {
	tb.Helper()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn, bufio.NewReader(conn)
}

func send(tb testing.TB, conn net.Conn, format string, args ...any) {
	tb.Helper()
	if _, err := fmt.Fprintf(conn, format, args...); err != nil {
		tb.Fatal(err)
	}
}

// readAnswer reads one answer off a connection.
func readAnswer(tb testing.TB, r *bufio.Reader) answered {
	tb.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		tb.Fatalf("no answer: %v", err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatalf("answer %d cut short: %v", resp.StatusCode, err)
	}
	return answered{resp, string(body)}
}

// wantStatus fails unless a has the status.
func wantStatus(tb testing.TB, a answered, want int) {
	tb.Helper()
	if a.StatusCode != want {
		tb.Fatalf("status %d (%q), want %d", a.StatusCode, a.body, want)
	}
}

// gate is a handler that says when a request has begun, and holds it until it is
// opened.
type gate struct {
	began chan *http.Request
	open  chan struct{}
}

func newGate() *gate { return &gate{make(chan *http.Request, 1000), make(chan struct{})} }

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.began <- r
	<-g.open
	_, _ = io.WriteString(w, "done")
}

// pipe serves h without sockets, so that client and server, net/http's own, live in
// virtual time. It is for tests in a bubble.
func pipe(t *testing.T, h http.Handler) *http.Client {
	t.Helper()
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	srv := &http.Server{Handler: h}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(l) })
	tr := &http.Transport{MaxIdleConnsPerHost: 1000, DialContext: l.dial}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		_ = srv.Close()
		serving.Wait()
	})
	return &http.Client{Transport: tr}
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
