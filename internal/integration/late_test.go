//go:build unix

package integration

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// lateNet makes connections of which one can be made to lose a packet: what is written
// next arrives late, as TCP repeats it, also after the connection was closed.
type lateNet struct {
	late  time.Duration
	eof   bool   // the client sees the connection end at once, instead of silence
	match []byte // what the packet must contain

	armed     atomic.Bool
	hit       atomic.Int64
	delivered atomic.Int64
}

type lateConn struct {
	net.Conn
	n            *lateNet
	mu           sync.Mutex
	held, closed bool
}

func (n *lateNet) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &lateConn{Conn: c, n: n}, nil
}

func (c *lateConn) Write(p []byte) (int, error) {
	if bytes.Contains(bytes.ToLower(p), []byte("evalsha")) && bytes.Contains(p, c.n.match) && c.n.armed.CompareAndSwap(true, false) {
		c.mu.Lock()
		c.held = true
		c.mu.Unlock()
		data := bytes.Clone(p)
		time.AfterFunc(c.n.late, func() {
			_ = c.SetWriteDeadline(time.Time{})
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			_, _ = c.Conn.Write(data)
			c.mu.Lock()
			c.held = false
			closed := c.closed
			c.mu.Unlock()
			if closed {
				_, _ = c.Conn.Read(make([]byte, 1)) // it was carried out
				_ = c.Conn.Close()
			}
			c.n.delivered.Add(1)
		})
		c.n.hit.Add(1)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *lateConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	held := c.held
	c.mu.Unlock()
	if held && c.n.eof {
		return 0, io.EOF
	}
	return c.Conn.Read(p)
}

func (c *lateConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.held {
		return c.SetReadDeadline(time.Unix(1, 0))
	}
	return c.Conn.Close()
}

// An acquire that reaches Redis after its caller has left takes nothing: nobody would
// give it back.
func TestLateAcquireTakesNothing(t *testing.T) {
	lease := func(outage gotsem.Outage) func(t *testing.T, rdb redis.UniversalClient) func(ctx context.Context) {
		return func(t *testing.T, rdb redis.UniversalClient) func(ctx context.Context) {
			sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(rdb, prefix), Limit: 3, TTL: time.Minute, Outage: outage})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sem.Close() })
			return func(ctx context.Context) {
				if l, err := sem.Try(ctx, "x"); err == nil {
					_ = l.Release(context.Background())
				}
			}
		}
	}
	for name, open := range map[string]func(t *testing.T, rdb redis.UniversalClient) func(ctx context.Context){
		"NewGotsem": func(_ *testing.T, rdb redis.UniversalClient) func(ctx context.Context) {
			sem := gotsem.NewGotsem(rdb, prefix, time.Minute, 3, nil, nil)
			return func(ctx context.Context) {
				if r := sem.TryAcquire(ctx, "x"); r.Acquired {
					sem.Release(context.Background(), "x", r.SlotID)
				}
			}
		},
		"Open":   lease(gotsem.Open),
		"Closed": lease(gotsem.Closed),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			n := &lateNet{late: 1500 * time.Millisecond} // after what is owed was given back, and once more
			try := open(t, srv.Client(func(o *redis.Options) { o.Dialer = n.dial }))
			try(context.Background())
			try(context.Background())
			n.armed.Store(true)
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
			defer cancel()
			try(ctx)
			soon(t, 10*time.Second, "the packet arrives", func() bool { return n.delivered.Load() == 1 })
			if m := members(t, srv, "x"); len(m) > 0 {
				t.Errorf("held by nobody: %v", m)
			}
			try(context.Background())
		})
	}
}

// An acquire was sent twice, since its connection ended, and every call was answered. Its
// first sending arrives after the release.
func TestLateFirstSendingIsGivenBack(t *testing.T) {
	srv := redistest.Start(t)
	n := &lateNet{late: 100 * time.Millisecond, eof: true}
	sem := gotsem.NewGotsem(srv.Client(func(o *redis.Options) { o.Dialer = n.dial }), prefix, time.Minute, 3, nil, nil)
	ctx := context.Background()
	for range 2 {
		r := sem.TryAcquire(ctx, "x")
		if !r.Acquired {
			t.Fatalf("%+v", r)
		}
		sem.Release(ctx, "x", r.SlotID)
		n.armed.Store(n.hit.Load() == 0)
	}
	if n.hit.Load() != 1 {
		t.Fatal("no packet was held back")
	}
	soon(t, 10*time.Second, "the packet arrives", func() bool { return n.delivered.Load() == 1 })
	soon(t, 10*time.Second, "what it took is given back", func() bool { return len(members(t, srv, "x")) == 0 })
}

// A poll that was not answered arrives after the wait has ended with a grant, and that was
// given back: it neither takes nor joins.
func TestLatePollTakesNothing(t *testing.T) {
	srv := redistest.Start(t)
	n := &lateNet{late: 2500 * time.Millisecond, match: []byte("x")}
	sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(srv.Client(func(o *redis.Options) { o.Dialer = n.dial }), prefix), Limit: 1, TTL: time.Minute, Grace: -1, StoreTimeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sem.Close() }()
	ctx := context.Background()
	l, err := sem.Try(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		lease *gotsem.Lease
		err   error
	}
	got := make(chan result, 1)
	go func() {
		l, err := sem.Acquire(ctx, "x")
		got <- result{l, err}
	}()
	soon(t, 5*time.Second, "it waits", func() bool { u, err := sem.Usage(ctx, "x"); return err == nil && u.Waiting == 1 })
	n.armed.Store(true)
	soon(t, 5*time.Second, "the poll that is lost", func() bool { return n.hit.Load() == 1 })
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	if err := r.lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	soon(t, 10*time.Second, "the poll arrives", func() bool { return n.delivered.Load() == 1 })
	if u, err := sem.Usage(ctx, "x"); err != nil || u.Active != 0 || u.Waiting != 0 {
		t.Errorf("%+v, %v", u, err)
	}
}
