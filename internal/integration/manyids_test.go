//go:build unix

package integration

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// Many ids, each used once: nothing of them stays, in Redis or here. GOTSEM_IDS
// says how many (30,000).
func TestUsedIDsLeaveNothing(t *testing.T) {
	many := 30_000
	if s := os.Getenv("GOTSEM_IDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		many = n
	}
	srv := redistest.Start(t)
	ctx := t.Context()
	plan := func(context.Context, string) (int, error) { return 1, nil }
	seed := gotsem.NewGotsem(srv.Client(), prefix, 2*time.Second, 1, plan, nil)
	t.Cleanup(func() { _ = seed.Close() })
	sem := fullSem(t, srv.Client(), 1, func(o *gotsem.Options) {
		o.LimitFunc, o.KnownFull, o.Outage, o.StoreTimeout = plan, time.Second, gotsem.Local, 5*time.Second
	})
	var open atomic.Int64 // on a machine that stands still for a moment
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const workers = 64
	use := func(from, to int) {
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				for i := from + w; i < to; i += workers {
					id := fmt.Sprint("once-", i)
					if i%4 == 0 { // a lease, given back
						l, err := sem.Try(ctx, id)
						if err != nil {
							t.Error(err)
							return
						}
						if err := l.Release(ctx); err != nil {
							t.Error(err)
							return
						}
						continue
					}
					r, failed := seed.TryAcquire(ctx, id), false // a slot, forgotten
					for r.FailedOpen() && ctx.Err() == nil {
						failed = true
						open.Add(1)
						time.Sleep(time.Millisecond)
						r = seed.TryAcquire(ctx, id)
					}
					if !r.Acquired && !failed { // else the call that was not answered may hold it
						t.Errorf("%s: %+v", id, r)
						return
					}
				}
			})
		}
		all.Wait()
	}
	began := time.Now()
	use(0, many/5) // what is bounded is full after that
	first := heap()
	use(many/5, many)
	took := time.Since(began)
	last := heap()
	t.Logf("%d ids in %v, %d calls found no Redis; heap %.1f MiB after a fifth, %.1f MiB at the end",
		many, took.Round(time.Millisecond), open.Load(), mib(first), mib(last))
	if t.Failed() {
		return
	}
	if last > first+8<<20 {
		t.Errorf("the heap grew from %.1f to %.1f MiB", mib(first), mib(last))
	}
	soon(t, 60*time.Second, "Redis to forget the ids", func() bool {
		if do(t, srv, "DBSIZE").(int64) > 5 {
			return false
		}
		for _, key := range do(t, srv, "KEYS", "*").([]any) {
			if strings.Contains(key.(string), "once-") {
				return false
			}
		}
		return true
	})
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }
