package faults

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/semui"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// LooksResult is what it costs Redis that somebody looks at the operators' page.
type LooksResult struct {
	IDs, Holders, Waiters int

	IdleRequests, IdleCPU float64 // a second, and of a core: nobody looks, and who waits asks
	Overview, One         struct{ Requests, CPU float64 }
	After                 float64  // requests a second, 31 s after the last viewer has gone
	Frames                int      // that the viewer was sent
	Slow                  []string // looks that took more than slowMicros, by the clock on the wall
	Most                  time.Duration
	TooSlow               int           // of those, more than Redis's slow log forgives by default
	Listed                time.Duration // all holders of the one id, a thousand at a time
}

// slowMicros is how long a command of a look may take. One is about an id, of five keys, or
// about fifty ids, of 201.
const slowMicros = 5_000

const defaultSlow = 10 * time.Millisecond

// Looks has one viewer look at ids that are held, at one that many hold, and at lines.
func Looks(tb redistest.TB, ids, holders, waiters int, length time.Duration) LooksResult {
	srv := redistest.Start(tb)
	rdb := srv.Client()
	ctx := context.Background()
	r := LooksResult{IDs: ids, Holders: holders, Waiters: waiters}
	must := func(err error) {
		if err != nil {
			tb.Fatalf("faults: %v", err)
		}
	}
	sem := func(limit int) *gotsem.Semaphore {
		st := redisstore.New(srv.Client(), "p:")
		s, err := gotsem.New(gotsem.Options{Store: st, Limit: limit, Queue: waiters})
		must(err)
		tb.Cleanup(func() { _, _ = s.Close(), st.Close() })
		return s
	}
	lapse := float64(time.Now().Add(time.Hour).UnixMilli())
	pipe := rdb.Pipeline()
	flush := func() { _, err := pipe.Exec(ctx); must(err) }
	for i := range ids {
		key := "p:id" + strconv.Itoa(i)
		pipe.ZAdd(ctx, key, redis.Z{Score: lapse, Member: fmt.Sprintf("f2Vz8fIhlSMu%02d", i%100)})
		pipe.Expire(ctx, key, time.Hour)
		if i%1000 == 999 {
			flush()
		}
	}
	for i := range holders {
		pipe.ZAdd(ctx, "p:one", redis.Z{Score: lapse + float64(i), Member: "f2Vz8fIhlSMu3Q" + strconv.Itoa(i)})
		if i%1000 == 999 {
			flush()
		}
	}
	pipe.Expire(ctx, "p:one", 2*time.Hour)
	flush()

	// Those who wait, at a limit of one.
	busy := sem(1)
	waiting, stop := context.WithCancel(ctx)
	tb.Cleanup(stop)
	lines := max(1, waiters/100)
	for i := range lines {
		_, err := busy.Acquire(ctx, "line"+strconv.Itoa(i))
		must(err)
	}
	for i := range waiters {
		go func() { _, _ = busy.Acquire(waiting, "line"+strconv.Itoa(i%lines)) }()
	}
	for began := time.Now(); busy.Stats().Waiting < waiters; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			tb.Fatalf("faults: %d of %d wait", busy.Stats().Waiting, waiters)
		}
	}
	must(rdb.ConfigSet(ctx, "slowlog-log-slower-than", strconv.Itoa(slowMicros)).Err())
	must(rdb.Do(ctx, "SLOWLOG", "RESET").Err())

	page, err := semui.New(semui.Options{Semaphore: sem(10), Authorize: semui.ViewOnly})
	must(err)
	ts := httptest.NewServer(page)
	tb.Cleanup(ts.Close)
	tb.Cleanup(func() { _ = page.Close() })
	view := func(of string) func() {
		looking, leave := context.WithCancel(ctx)
		req, err := http.NewRequestWithContext(looking, http.MethodGet, ts.URL+"/api/v1/events?view="+of, nil)
		must(err)
		resp, err := ts.Client().Do(req)
		must(err)
		left := make(chan struct{})
		go func() {
			defer close(left)
			defer resp.Body.Close()
			for in := bufio.NewReader(resp.Body); ; {
				line, err := in.ReadString('\n')
				if strings.HasPrefix(line, "data: ") {
					r.Frames++
				}
				if err != nil {
					return
				}
			}
		}()
		return func() { leave(); <-left }
	}
	r.IdleRequests, r.IdleCPU = requests(tb, srv, length), cpu(srv, length)
	leave := view("ids")
	r.Overview.CPU, r.Overview.Requests = cpu(srv, length), requests(tb, srv, length)
	leave()
	leave = view("id&id=" + base64.RawURLEncoding.EncodeToString([]byte("one")))
	r.One.CPU, r.One.Requests = cpu(srv, length), requests(tb, srv, length)
	leave()

	began := time.Now()
	all, err := sem(10).Holders(ctx, "one")
	must(err)
	if r.Listed = time.Since(began); len(all) != holders {
		tb.Fatalf("faults: %d holders listed, want %d", len(all), holders)
	}
	time.Sleep(31 * time.Second) // the page looks for thirty
	r.After = requests(tb, srv, length)
	slow, err := rdb.SlowLogGet(ctx, 100).Result()
	must(err)
	for _, s := range slow {
		if len(s.Args) > 2 && s.Args[2] != "5" && s.Args[2] != "201" && s.Args[0] == "evalsha" || strings.HasPrefix(s.Args[0], "Z") {
			continue // those who wait: hundreds of them in one call, and what MONITOR held up
		}
		if r.Most = max(r.Most, s.Duration); s.Duration > defaultSlow {
			r.TooSlow++
		}
		r.Slow = append(r.Slow, fmt.Sprintf("%v: %.100q", s.Duration, strings.Join(s.Args, " ")))
	}
	return r
}

// cpu is what of a core the server takes within d.
func cpu(srv *redistest.Server, d time.Duration) float64 {
	used := func() float64 {
		info := srv.Info("cpu")
		user, _ := strconv.ParseFloat(info["used_cpu_user"], 64)
		sys, _ := strconv.ParseFloat(info["used_cpu_sys"], 64)
		return user + sys
	}
	before := used()
	time.Sleep(d)
	return (used() - before) / d.Seconds()
}

// requests is how many commands a second clients send within d; what scripts do is not
// among them.
func requests(tb redistest.TB, srv *redistest.Server, d time.Duration) float64 {
	conn, err := net.Dial("tcp", srv.Addr())
	if err != nil {
		tb.Fatalf("faults: %v", err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "MONITOR\r\n"); err != nil {
		tb.Fatalf("faults: %v", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(d))
	n := 0
	for in := bufio.NewScanner(conn); in.Scan(); {
		if line := in.Text(); strings.HasPrefix(line, "+") && line != "+OK" && !strings.Contains(line, " lua] ") {
			n++
		}
	}
	return float64(n) / d.Seconds()
}

// Bad is what costs more than it may.
func (r LooksResult) Bad() (bad []string) {
	for name, v := range map[string]struct{ Requests, CPU float64 }{"the overview": r.Overview, "one id": r.One} {
		if more := v.Requests - r.IdleRequests; more > 250 {
			bad = append(bad, fmt.Sprintf("%s: %.0f requests a second, at most 250", name, more))
		}
		if more := v.CPU - r.IdleCPU; more > .03 {
			bad = append(bad, fmt.Sprintf("%s: %.1f %% of a core, at most 3", name, 100*more))
		}
	}
	if r.After > 1.1*r.IdleRequests+5 {
		bad = append(bad, fmt.Sprintf("nobody looks, and there are %.0f requests a second; %.0f before anybody did", r.After, r.IdleRequests))
	}
	if r.TooSlow > 0 {
		bad = append(bad, fmt.Sprintf("%d looks took more than %v: %s", r.TooSlow, defaultSlow, strings.Join(r.Slow, "; ")))
	}
	return bad
}

func (r LooksResult) String() string {
	return fmt.Sprintf(`%d ids held, one of them by %d, and %d who wait: %.0f requests a second, %.1f %% of a core
one viewer of the overview: %.0f requests a second more, %.1f %% of a core more
one viewer of one id:       %.0f requests a second more, %.1f %% of a core more
nobody, 31 s later:         %.0f requests a second more; %d frames were sent, %d looks took more than %d ms, the longest %v
all %d holders listed in %v`,
		r.IDs, r.Holders, r.Waiters, r.IdleRequests, 100*r.IdleCPU,
		r.Overview.Requests-r.IdleRequests, 100*(r.Overview.CPU-r.IdleCPU), r.One.Requests-r.IdleRequests, 100*(r.One.CPU-r.IdleCPU),
		r.After-r.IdleRequests, r.Frames, len(r.Slow), slowMicros/1000, r.Most, r.Holders, r.Listed.Round(time.Millisecond))
}
