// Package lab measures what the ways to deal with too many captures come to: it
// runs the real service with a real browser in a small cgroup, sends it more than
// it can do, from clients that give up and try again, and draws what came of it.
package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Options say what is measured.
type Options struct {
	Modes    []Mode
	Time     time.Duration // of each mode; more where Patience needs it
	Load     float64       // arrivals, as a multiple of what the server can do
	Max      int           // captures at once
	Memory   int64         // bytes that the browser's cgroup may take
	Pids     int
	PageSize int           // bytes that a page takes in the browser
	Delay    time.Duration // that a page takes besides, in the network
	Patience time.Duration // of a client, for one try; 0: two captures' time
	Attempts int           // that a client makes

	// Command starts a server under test: this program, told to call Child.Serve.
	Command func(Child) *exec.Cmd

	Log *slog.Logger
}

// Sample is how things stood at a moment of a run.
type Sample struct {
	At      time.Duration
	OK      int   // pictures that clients got so far
	Open    int   // requests at the server; -1: it did not answer
	Browser int64 // bytes
	Server  int64 // bytes
	Tabs    int
}

// Result is what a run of one mode came to.
type Result struct {
	Mode     Mode
	Title    string
	Offered  float64 // arrivals a second
	Users    int     // arrivals in all
	OK       int     // that got their picture, in the time of the run
	Refused  int     // answers 429
	TimedOut int     // tries given up by their client
	Failed   int     // other answers
	Goodput  float64 // pictures a second
	Capacity float64 // pictures a second from as many clients as slots, just before and after
	Told     Told    // by the server, at the end
	Waste    float64 // share of the tab time that brought nobody a picture
	MostOpen int
	Memory   int64 // most of the browser
	Server   int64 // most of the server
	Kills    int64 // processes that the kernel ended for want of memory
	Samples  []Sample
}

// ModesResult is what a run of several modes came to.
type ModesResult struct {
	Options  Options `json:"-"`
	Cell     string
	Capacity float64 // pictures a second, from as many clients as slots, at first
	Results  []Result
}

// page takes memory in the browser, and time.
func (o Options) page() http.Handler {
	body := fmt.Sprintf(`<!doctype html><style>html{background:green}td{border:1px solid #ccc}</style><table id=t></table><script>
window.kept = []
for (let n = %d; n > 0; n -= 1 << 20) kept.push(crypto.getRandomValues(new Uint8Array(65536)), new Float64Array((1 << 17) - 8192).fill(Math.random()))
let rows = ''
for (let i = 0; i < 400; i++) rows += '<tr><td>' + i + '<td>' + Math.sqrt(i) + '<td>' + 'x'.repeat(i %% 50)
document.getElementById('t').innerHTML = rows
</script>`, o.PageSize)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(o.Delay):
		case <-r.Context().Done():
		}
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, body)
	})
}

// RunModes measures the modes, one after the other.
func RunModes(ctx context.Context, o Options) (*ModesResult, error) {
	pages := httptest.NewServer(o.page())
	defer pages.Close()
	before, err := o.capacity(ctx, pages)
	if err != nil {
		return nil, err
	}
	out := &ModesResult{Capacity: before}
	if o.Patience == 0 {
		o.Patience = max(time.Second, time.Duration(2*float64(o.Max)/before*float64(time.Second)))
		o.Time = max(o.Time, 3*o.Patience) // else nobody's would be over
	}
	out.Options = o
	for _, m := range o.Modes {
		r, kind, err := o.run(ctx, m, pages, out.Capacity*o.Load)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m, err)
		}
		after, err := o.capacity(ctx, pages)
		if err != nil {
			return nil, err
		}
		r.Capacity = (before + after) / 2
		before = after
		out.Cell = kind
		out.Results = append(out.Results, *r)
		o.Log.Info("lab: measured", "mode", m, "per second", round(r.Goodput), "capacity", round(r.Capacity), "wasted %", round(100*r.Waste), "refused", r.Refused, "timed out", r.TimedOut, "failed", r.Failed, "open", r.MostOpen, "browser MB", r.Memory>>20, "killed", r.Kills, "crashes", r.Told.Crashes)
	}
	return out, nil
}

func round(f float64) float64 { return float64(int(f*100+.5)) / 100 }

// capacity is how many captures a second the server makes for as many clients as it
// has slots, in a quarter of a mode's time.
func (o Options) capacity(ctx context.Context, pages *httptest.Server) (float64, error) {
	s, err := o.start(Try, pages)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	if err := s.warm(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Time/4+time.Minute)
	defer cancel()
	var ok atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range o.Max {
		wg.Go(func() {
			// On a slow machine longer: one each is the least that tells something.
			for ctx.Err() == nil && (time.Since(began) < o.Time/4 || int(ok.Load()) < o.Max) {
				if s.try(ctx, time.Minute).status == http.StatusOK {
					ok.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if ok.Load() == 0 {
		return 0, errors.New("no capture succeeded")
	}
	return float64(ok.Load()) / time.Since(began).Seconds(), nil
}

// run measures one mode.
func (o Options) run(ctx context.Context, m Mode, pages *httptest.Server, perSecond float64) (*Result, string, error) {
	s, err := o.start(m, pages)
	if err != nil {
		return nil, "", err
	}
	defer s.stop()
	if err := s.warm(ctx); err != nil {
		return nil, "", err
	}
	r := &Result{Mode: m, Title: titles[m], Offered: perSecond}
	ctx, cancel := context.WithTimeout(ctx, o.Time)
	defer cancel()
	crowd := crowd{server: s, patience: o.Patience, attempts: o.Attempts}
	var wg sync.WaitGroup
	wg.Go(func() { r.Samples = s.sample(ctx, &crowd) })
	wg.Go(func() { crowd.arrive(ctx, perSecond) })
	<-ctx.Done()
	told, err := s.told(context.Background())
	wg.Wait()
	if err != nil {
		o.Log.Warn("lab: the server does not tell", "error", err)
	}
	r.Told, r.Kills = told, s.cell.kills()
	r.Users, r.OK, r.Refused = int(crowd.users.Load()), int(crowd.ok.Load()), int(crowd.refused.Load())
	r.TimedOut, r.Failed = int(crowd.timedOut.Load()), int(crowd.failed.Load())
	r.Goodput = float64(r.OK) / o.Time.Seconds()
	if told.TabTime > 0 {
		r.Waste = float64(told.WastedTime) / float64(told.TabTime)
	}
	for _, x := range r.Samples {
		r.MostOpen, r.Memory, r.Server = max(r.MostOpen, x.Open), max(r.Memory, x.Browser), max(r.Server, x.Server)
	}
	return r, s.cell.kind, nil
}

// underTest is a server in a process of its own.
type underTest struct {
	url    string
	page   string
	cell   cell
	client *http.Client
	cmd    *exec.Cmd
	stdin  io.Closer
}

var cells atomic.Int64

// start starts a server whose browser is in a new cell.
func (o Options) start(m Mode, pages *httptest.Server) (*underTest, error) {
	s := &underTest{page: pages.URL, cell: newCell(fmt.Sprintf("screenshotd-lab-%d-%d", os.Getpid(), cells.Add(1)), o.Memory, o.Pids)}
	s.cmd = o.Command(Child{Mode: m, Max: o.Max, Target: pages.Listener.Addr().String(), Cells: s.cell.procs()})
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	s.stdin = stdin
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("the server under test did not start: %w", err)
	}
	s.url = "http://" + addr[:len(addr)-1]
	s.client = &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 64,
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	}}
	return s, nil
}

// stop ends the server, its browser and its cell.
func (s *underTest) stop() {
	_ = s.stdin.Close()
	late := time.AfterFunc(15*time.Second, func() { _ = s.cmd.Process.Kill() })
	_ = s.cmd.Wait()
	late.Stop()
	if s.client != nil {
		s.client.CloseIdleConnections()
	}
	_ = s.cell.remove()
}

func (s *underTest) warm(ctx context.Context) error {
	if a := s.try(ctx, 30*time.Second); a.status != http.StatusOK {
		return fmt.Errorf("the first capture: status %d, %v", a.status, a.err)
	}
	return nil
}

// told asks the server how it stands.
func (s *underTest) told(ctx context.Context) (t Told, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/lab", nil)
	if err != nil {
		return t, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return t, err
	}
	defer func() { _ = resp.Body.Close() }()
	return t, json.NewDecoder(resp.Body).Decode(&t)
}

// sample writes down how things stand, twice a second, until ctx ends.
func (s *underTest) sample(ctx context.Context, c *crowd) (out []Sample) {
	began := time.Now()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	last := Told{}
	for {
		x := Sample{At: time.Since(began), OK: int(c.ok.Load()), Open: -1, Server: processPSS(s.cmd.Process.Pid)}
		if t, err := s.told(ctx); err == nil {
			last, x.Open, x.Tabs = t, t.Open, t.Running
		}
		x.Browser = s.cell.usage(last.BrowserPid)
		if ctx.Err() == nil {
			out = append(out, x)
		}
		select {
		case <-ctx.Done():
			return out
		case <-tick.C:
		}
	}
}

// answer is what became of one try.
type answer struct {
	status     int // 0: none
	retryAfter time.Duration
	took       time.Duration // until its header was there
	body       []byte
	err        error
}

// try asks for one capture, for as long as patience allows.
func (s *underTest) try(ctx context.Context, patience time.Duration) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	q := url.Values{"url": {s.page}, "width": {"800"}, "height": {"600"}, "timeout": {"30s"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/capture?"+q.Encode(), nil)
	if err != nil {
		return answer{err: err}
	}
	began := time.Now()
	resp, err := s.client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	a.took = time.Since(began)
	if a.body, a.err = io.ReadAll(resp.Body); a.err != nil {
		return a
	}
	a.status = resp.StatusCode
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		a.retryAfter = time.Duration(n) * time.Second
	}
	return a
}

// crowd are the clients: they come whether or not the server keeps up, give a try
// up when their patience is over, and try again.
type crowd struct {
	server   *underTest
	patience time.Duration
	attempts int

	users, ok, refused, timedOut, failed atomic.Int64
}

// arrive lets users in until ctx ends, and waits for them. They come at random
// moments, the same in each run.
func (c *crowd) arrive(ctx context.Context, perSecond float64) {
	var wg sync.WaitGroup
	defer wg.Wait()
	dice := rand.New(rand.NewPCG(1, 2))
	next := time.Now()
	for {
		next = next.Add(time.Duration(dice.ExpFloat64() / perSecond * float64(time.Second)))
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			return
		}
		c.users.Add(1)
		wg.Go(func() { c.user(ctx) })
	}
}

// user tries until there is a picture, or too often.
func (c *crowd) user(ctx context.Context) {
	for range c.attempts {
		a := c.server.try(ctx, c.patience)
		pause := 200*time.Millisecond + rand.N(300*time.Millisecond)
		switch {
		case ctx.Err() != nil:
			return
		case a.status == http.StatusOK:
			c.ok.Add(1)
			return
		case a.status == http.StatusTooManyRequests:
			c.refused.Add(1)
			pause += a.retryAfter
		case errors.Is(a.err, context.DeadlineExceeded):
			c.timedOut.Add(1)
		default:
			c.failed.Add(1)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// percentile is the p-th part of the durations, which it sorts.
func percentile(ds []time.Duration, p float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return ds[min(len(ds)-1, int(p*float64(len(ds))))]
}
