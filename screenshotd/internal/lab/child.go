package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/browser"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/guard"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/server"
)

// A Mode is a way to deal with more captures than there are slots.
type Mode string

// The modes.
const (
	None     Mode = "none"     // no semaphore
	Acquire  Mode = "acquire"  // Acquire(r.Context()), a line without bound
	Detached Mode = "detached" // Acquire(context.Background()): the line does not notice who left
	Line     Mode = "line"     // as many places as slots, for a second
	Try      Mode = "try"      // 429 at once
)

// Modes are all of them, the worst first.
var Modes = []Mode{None, Detached, Acquire, Line, Try}

// titles are what charts and tables call the modes.
var titles = map[Mode]string{
	None: "no semaphore", Acquire: "Acquire(r.Context())", Detached: "Acquire(Background)", Line: "line of 6, 1 s", Try: "try + 429",
}

// Child says what a server under test does. It runs in a process of its own, so
// that its memory can be told from that of its clients.
type Child struct {
	Mode     Mode
	Max      int
	Target   string // host:port that may be captured
	Chromium string
	Cells    []string // cgroup.procs files that the browser enters
}

const (
	lineWait = time.Second
	noBound  = 1 << 20 // places in a line "without bound"
)

// Serve runs the server under test until stdin ends, which it does when the parent
// dies. Its address is the first line that it prints.
func (c Child) Serve(ctx context.Context, stdin io.Reader, stdout io.Writer, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	allow, err := guard.ParseException(c.Target)
	if err != nil {
		return err
	}
	g := guard.New(guard.Options{Allow: []guard.Exception{allow}, Logger: log})
	if err := g.Start(); err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	b, err := browser.New(browser.Options{Path: c.Chromium, Guard: g, Logger: log, Wrap: c.enter})
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	queue := map[Mode]int{Line: c.Max, Acquire: noBound, Detached: noBound}[c.Mode]
	if queue == 0 {
		queue = -1
	}
	sem, err := gotsem.New(gotsem.Options{Limit: c.Max, Queue: queue})
	if err != nil {
		return err
	}
	defer func() { _ = sem.Close() }()

	m := &meter{browser: b}
	o := server.Options{Browser: m, Semaphore: sem, Door: c.door(sem)}
	if c.Mode == Line {
		o.Wait = lineWait
	}
	s, err := server.New(o)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", m.measured(s))
	mux.HandleFunc("GET /lab", m.tell)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer func() { _ = srv.Close() }()
	go m.watchTabs(ctx)
	go func() { _ = srv.Serve(l) }()
	if _, err := fmt.Fprintln(stdout, l.Addr()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// enter has the browser's process enter its cgroups before it becomes the browser.
func (c Child) enter(cmd *exec.Cmd) {
	if len(c.Cells) == 0 {
		return
	}
	const script = `n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ >"$1" || exit 1; shift; n=$((n-1)); done; exec "$@"`
	args := append([]string{"sh", "-c", script, "sh", fmt.Sprint(len(c.Cells))}, c.Cells...)
	args = append(args, cmd.Path)
	cmd.Args = append(args, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
}

// door is what stands before the captures. Nil: the server's own, httpshed.
func (c Child) door(sem *gotsem.Semaphore) func(http.Handler) http.Handler {
	switch c.Mode {
	case None:
		return func(next http.Handler) http.Handler { return next }
	case Acquire:
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := sem.Do(r.Context(), server.ID, func(context.Context) error {
					next.ServeHTTP(w, r)
					return nil
				}); err != nil {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			})
		}
	case Detached:
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx := context.WithoutCancel(r.Context())
				if err := sem.Do(ctx, server.ID, func(context.Context) error {
					next.ServeHTTP(w, r.WithContext(ctx))
					return nil
				}); err != nil {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			})
		}
	}
	return nil
}

// meter measures, in the server under test, where the time of the tabs goes.
type meter struct {
	browser *browser.Browser

	open, tabs, mostTabs atomic.Int64
	done, wasted         atomic.Int64 // captures that ended; of which nobody got the picture
	tabTime, wastedTime  atomic.Int64
}

// record is the capture of one request.
type record struct {
	tab time.Duration
	ran bool
	ok  bool
}

type recordKey struct{}

// Capture implements server.Capturer.
func (m *meter) Capture(ctx context.Context, j browser.Job) (*browser.Picture, error) {
	m.tabs.Add(1)
	defer m.tabs.Add(-1)
	began := time.Now()
	pic, err := m.browser.Capture(ctx, j)
	if rec, ok := ctx.Value(recordKey{}).(*record); ok {
		rec.tab, rec.ran, rec.ok = time.Since(began), true, err == nil
	}
	return pic, err
}

// Failing implements server.Capturer.
func (m *meter) Failing() error { return m.browser.Failing() }

// measured judges each capture by whether its client was still there for it.
func (m *meter) measured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.open.Add(1)
		defer m.open.Add(-1)
		rec := new(record)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), recordKey{}, rec)))
		if !rec.ran {
			return
		}
		m.done.Add(1)
		m.tabTime.Add(int64(rec.tab))
		if !rec.ok || r.Context().Err() != nil {
			m.wasted.Add(1)
			m.wastedTime.Add(int64(rec.tab))
		}
	})
}

// watchTabs asks the browser how many tabs it has.
func (m *meter) watchTabs(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if n, _, err := m.browser.Tabs(ctx); err == nil {
			m.mostTabs.Store(max(m.mostTabs.Load(), int64(n)))
		}
	}
}

// Told is what a server under test tells of itself.
type Told struct {
	Open       int           `json:"open"`     // requests that wait or run
	Running    int           `json:"running"`  // captures
	MostTabs   int           `json:"mostTabs"` // as the browser counts them
	Done       int           `json:"done"`
	Wasted     int           `json:"wasted"`
	TabTime    time.Duration `json:"tabTime"`
	WastedTime time.Duration `json:"wastedTime"`
	Crashes    int           `json:"crashes"`
	BrowserPid int           `json:"browserPid"`
	Pid        int           `json:"pid"`
}

func (m *meter) tell(w http.ResponseWriter, _ *http.Request) {
	ended := m.browser.Ended()
	_ = json.NewEncoder(w).Encode(Told{
		Open: int(m.open.Load()), Running: int(m.tabs.Load()), MostTabs: int(m.mostTabs.Load()),
		Done: int(m.done.Load()), Wasted: int(m.wasted.Load()),
		TabTime: time.Duration(m.tabTime.Load()), WastedTime: time.Duration(m.wastedTime.Load()),
		Crashes: int(ended["crashed"] + ended["stuck"]), BrowserPid: m.browser.Pid(), Pid: os.Getpid(),
	})
}
