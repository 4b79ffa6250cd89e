//go:build unix

package integration

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// go-redis logs every connection that fails, which here is what is tested.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	var stop func()
	var err error
	names, stop, err = redistest.Launch("integration", func(tb redistest.TB) *redistest.Names {
		identity = redistest.NewIdentity(tb, "*.test")
		return redistest.NewNames(tb)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	net.DefaultResolver = names.Resolver() // go-redis asks this one
	code := m.Run()
	stop()
	os.Exit(code)
}

// prefix is where the ids of these tests lie.
const prefix = "sem:"

// patience is how long an event is awaited that must come: long enough for a busy
// machine, and never slept through.
const patience = 20 * time.Second

// soon waits until ready, and fails the test if that does not come within d.
func soon(t testing.TB, d time.Duration, what string, ready func() bool) {
	t.Helper()
	began := time.Now()
	for tick := time.Millisecond; !ready(); tick = min(2*tick, 20*time.Millisecond) {
		if time.Since(began) > d {
			t.Fatalf("waited %v for %s", d, what)
		}
		time.Sleep(tick)
	}
}

// received returns what comes over c, and fails the test if nothing does.
func received[T any](t testing.TB, c <-chan T, d time.Duration, what string) T {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("waited %v for %s", d, what)
		panic("unreachable")
	}
}

// fullSem makes a semaphore from New on a Redis, which is closed with the test. Unless
// told otherwise it waits for Redis for longer than the default: a busy machine that
// stands still for a moment is not what most tests are about.
func fullSem(t testing.TB, rdb redis.UniversalClient, limit int, set func(*gotsem.Options)) *gotsem.Semaphore {
	t.Helper()
	st := redisstore.New(rdb, prefix)
	t.Cleanup(func() { _ = st.Close() })
	o := gotsem.Options{Store: st, Limit: limit, Outage: gotsem.Closed}
	if set != nil {
		set(&o)
	}
	if o.StoreTimeout == 0 {
		o.StoreTimeout = min(2*time.Second, cmp.Or(o.TTL, gotsem.DefaultTTL)/2)
	}
	sem, err := gotsem.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sem.Close() })
	return sem
}

// seedSem makes a semaphore from NewGotsem on a Redis. It is closed with the test,
// which its users need not do.
func seedSem(t testing.TB, rdb redis.UniversalClient, ttl time.Duration, limit int) *gotsem.Semaphore {
	t.Helper()
	sem := gotsem.NewGotsem(rdb, prefix, ttl, limit, nil, nil)
	t.Cleanup(func() { _ = sem.Close() })
	return sem
}

// loudSem is seedSem, and what it logged.
func loudSem(t testing.TB, rdb redis.UniversalClient, ttl time.Duration, limit int) (*gotsem.Semaphore, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	sem := gotsem.NewGotsem(rdb, prefix, ttl, limit, nil, zap.New(core).Sugar())
	t.Cleanup(func() { _ = sem.Close() })
	return sem, logs
}

// members returns the slot ids in the set of an id, and when they lapse.
func members(t testing.TB, srv *redistest.Server, id string) map[string]int64 {
	t.Helper()
	reply, err := srv.Do("ZRANGE", prefix+id, 0, -1, "WITHSCORES")
	if err != nil {
		t.Fatal(err)
	}
	pairs, _ := reply.([]any)
	out := make(map[string]int64, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		score, err := strconv.ParseFloat(fmt.Sprint(pairs[i+1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		out[fmt.Sprint(pairs[i])] = int64(score)
	}
	return out
}

// waiting returns the slot ids in the line of an id without braces, in order.
func waiting(t testing.TB, srv *redistest.Server, id string) []string {
	t.Helper()
	reply, err := srv.Do("ZRANGE", "gotsem:{"+prefix+id+"}:q", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	items, _ := reply.([]any)
	out := make([]string, len(items))
	for i, item := range items {
		out[i] = fmt.Sprint(item)
	}
	return out
}

// calls returns how often a command was called since the server started, from
// scripts included.
func calls(t testing.TB, srv *redistest.Server, command string) int {
	t.Helper()
	line := srv.Info("commandstats")["cmdstat_"+command]
	for field := range strings.SplitSeq(line, ",") {
		if n, ok := strings.CutPrefix(field, "calls="); ok {
			v, err := strconv.Atoi(n)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	return 0
}

// serverTime returns the server's clock in Unix ms.
func serverTime(t testing.TB, srv *redistest.Server) int64 {
	t.Helper()
	rdb := srv.Client()
	now, err := rdb.Time(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return now.UnixMilli()
}

// do sends a command that must succeed.
func do(t testing.TB, srv *redistest.Server, args ...any) any {
	t.Helper()
	reply, err := srv.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// tally counts holders outside Redis.
type tally struct {
	mu                sync.Mutex
	now, most, passed int
}

func (c *tally) in() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	c.passed++
	c.most = max(c.most, c.now)
}

func (c *tally) out() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
}

// read returns the most that held at once, and how many held in all.
func (c *tally) read() (most, passed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most, c.passed
}

// repeatedly runs f in n goroutines until d has passed, each at least once.
func repeatedly(d time.Duration, n int, f func(worker int)) {
	ends := time.Now().Add(d)
	var all sync.WaitGroup
	for worker := range n {
		all.Go(func() {
			for {
				f(worker)
				if time.Now().After(ends) {
					return
				}
			}
		})
	}
	all.Wait()
}

// ours returns how many goroutines run code of this module that is not a test's, and
// their stacks.
func ours() (n int, stacks string) {
	buf := make([]byte, 4<<20)
	var out strings.Builder
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "gotsem/store/") || strings.Contains(stack, "/gotsem.(*") {
			n++
			out.WriteString(stack + "\n\n")
		}
	}
	return n, out.String()
}

// contains is for relays: it accepts a request in which text stands.
func contains(text string) func(request []byte) bool {
	return func(request []byte) bool { return strings.Contains(string(request), text) }
}

// wrapped is what many programs hand around: a type of their own around a client.
type wrapped struct{ redis.UniversalClient }
