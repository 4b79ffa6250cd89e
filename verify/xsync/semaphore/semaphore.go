// Package semaphore has the face of golang.org/x/sync/semaphore, over gotsem: what the
// tests of that package hold us to. It is not meant to be used: a lease is more than a
// number of tokens. Where the two differ by design, the difference is here:
//
//   - more than the limit is ErrTooHeavy there, at once; here, as in x/sync, it waits for
//     the end of its ctx;
//   - a lease is released once and whole, by whoever has it; here tokens are given back by
//     number, so that leases are put together for that, and a release of what nobody holds
//     panics, as in x/sync;
//   - a weight is at least 1; here 0 is granted, and takes nothing.
package semaphore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// RedisVariable holds the host:port of a Redis to keep the tokens in; empty: in memory.
const RedisVariable = "GOTSEM_XSYNC_REDIS"

// shared is the semaphore that all have their tokens in, each as an id of its own: x/sync
// has no Close, and its tests make thousands.
var shared = sync.OnceValue(func() *gotsem.Semaphore {
	o := gotsem.Options{
		// The limit is part of the id. It is asked for with the first call, which waits.
		LimitFunc: func(_ context.Context, id string) (int, error) {
			_, limit, _ := strings.Cut(id, ":")
			return strconv.Atoi(limit)
		},
		Queue:  math.MaxInt32,
		TTL:    30 * time.Second,
		Outage: gotsem.Closed,
		// What is tested is who gets what, and not how busy the machine is.
		StoreTimeout: 10 * time.Second,
	}
	if addr := os.Getenv(RedisVariable); addr != "" {
		o.Store = redisstore.New(redis.NewClient(&redis.Options{Addr: addr}), "xsync:")
	}
	sem, err := gotsem.New(o)
	if err != nil {
		panic(err)
	}
	return sem
})

var made atomic.Int64

// Weighted is as in x/sync.
type Weighted struct {
	id   string
	size int64

	mu     sync.Mutex
	leases []*gotsem.Lease // the lightest first
}

// NewWeighted makes one with n tokens.
func NewWeighted(n int64) *Weighted {
	if n < 0 {
		panic("semaphore: negative size")
	}
	return &Weighted{id: fmt.Sprintf("%d:%d", made.Add(1), n), size: n}
}

// Acquire waits for n tokens, or for the end of ctx, whose error it returns.
func (w *Weighted) Acquire(ctx context.Context, n int64) error {
	if mustCount(n) == 0 {
		return ctx.Err()
	}
	lease, err := shared().Acquire(ctx, w.id, gotsem.Weight(int(n)))
	switch {
	case err == nil:
		w.keep(lease)
		return nil
	case w.size > 0 && errors.Is(err, gotsem.ErrTooHeavy):
		<-ctx.Done()
		return ctx.Err()
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return ctx.Err() // ours says for which id; the tests compare with ==
	}
	return err
}

// TryAcquire takes n tokens if they are there, and nobody waits.
func (w *Weighted) TryAcquire(n int64) bool {
	if mustCount(n) == 0 {
		return true
	}
	lease, err := shared().Try(context.Background(), w.id, gotsem.Weight(int(n)))
	if err != nil {
		if !errors.Is(err, gotsem.ErrFull) && !errors.Is(err, gotsem.ErrTooHeavy) {
			panic(err) // it is no answer to the question
		}
		return false
	}
	w.keep(lease)
	return true
}

// Release gives n tokens back.
func (w *Weighted) Release(n int64) {
	if mustCount(n) == 0 {
		return
	}
	for _, lease := range w.take(int(n)) {
		if err := lease.Release(context.Background()); err != nil {
			panic(err)
		}
	}
}

func mustCount(n int64) int64 {
	if n < 0 {
		panic("semaphore: negative weight")
	}
	return n
}

func (w *Weighted) keep(l *gotsem.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, _ := slices.BinarySearchFunc(w.leases, l.Weight(), func(l *gotsem.Lease, n int) int { return l.Weight() - n })
	w.leases = slices.Insert(w.leases, at, l)
}

// take removes leases that have n tokens together: one of that weight, or else the
// lightest ones.
func (w *Weighted) take(n int) (out []*gotsem.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, l := range w.leases {
		if l.Weight() == n {
			w.leases = slices.Delete(w.leases, i, i+1)
			return []*gotsem.Lease{l}
		}
	}
	for n > 0 {
		if len(w.leases) == 0 || w.leases[0].Weight() > n {
			panic("semaphore: released more than held")
		}
		n -= w.leases[0].Weight()
		out = append(out, w.leases[0])
		w.leases = slices.Delete(w.leases, 0, 1)
	}
	return out
}
