package redisstore

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// idleAfter is for how long a connection of a twin may be of no use to anybody. go-redis
// looks at the age of a connection only when it needs one, so those of an application that
// has ended its work, and closed the client that it knows of, would stay for ever.
const idleAfter = 30 * time.Second

// connections are those that a twin has open.
type connections struct {
	after time.Duration // idleAfter

	mu    sync.Mutex
	open  map[*connection]struct{}
	timer *time.Timer // runs while some are open
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// tracked has a dialer's connections closed when they have long not been used.
func (cs *connections) tracked(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &connection{Conn: conn, of: cs}
		c.used.Store(time.Now().UnixMilli())
		cs.mu.Lock()
		defer cs.mu.Unlock()
		if cs.open == nil {
			cs.open = make(map[*connection]struct{})
		}
		cs.open[c] = struct{}{}
		if cs.timer == nil {
			cs.timer = time.AfterFunc(cs.after, cs.sweep)
		}
		return c, nil
	}
}

// sweep closes what is idle, and comes again while something is open.
func (cs *connections) sweep() {
	cs.closeIdle(cs.after)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.open) == 0 {
		cs.timer = nil
		return
	}
	cs.timer.Reset(cs.after)
}

// closeIdle closes the connections that wait for no answer, and were not used for as long
// as that.
func (cs *connections) closeIdle(unused time.Duration) {
	limit := time.Now().Add(-unused).UnixMilli()
	var idle []*connection
	cs.mu.Lock()
	for c := range cs.open {
		if c.end(limit) {
			idle = append(idle, c)
		}
	}
	cs.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
	}
}

// connection is one of them. go-redis asks for SyscallConn when it takes a connection out
// of its pool, to see whether it is still open: it is in use from then on, or has ended.
type connection struct {
	net.Conn
	of   *connections
	used atomic.Int64 // Unix ms, or ended
	asks atomic.Bool  // something was written, and nothing read since
}

const ended = -1

var errIdle = errors.New("redisstore: the connection was closed since nobody used it")

// end ends a connection that was not used since limit, for whoever takes it next.
func (c *connection) end(limit int64) bool {
	used := c.used.Load()
	return used != ended && used <= limit && !c.asks.Load() && c.used.CompareAndSwap(used, ended)
}

// use reports whether the connection has not ended, and keeps it from ending for a while.
func (c *connection) use() bool {
	for now := time.Now().UnixMilli(); ; {
		used := c.used.Load()
		if used == ended {
			return false
		}
		if used == now || c.used.CompareAndSwap(used, now) {
			return true
		}
	}
}

func (c *connection) Write(b []byte) (int, error) {
	c.asks.Store(true)
	if !c.use() {
		return 0, errIdle
	}
	return c.Conn.Write(b)
}

func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.asks.Store(false)
	return n, err
}

func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// SyscallConn is that of the connection where it has one; else, as with TLS, what looks
// at nothing: what is to be told is whether it has ended.
func (c *connection) SyscallConn() (syscall.RawConn, error) {
	if !c.use() {
		return nil, errIdle
	}
	if raw, ok := c.Conn.(syscall.Conn); ok {
		return raw.SyscallConn()
	}
	return opaque{}, nil
}

type opaque struct{}

func (opaque) Control(func(uintptr)) error    { return nil }
func (opaque) Read(func(uintptr) bool) error  { return nil }
func (opaque) Write(func(uintptr) bool) error { return nil }
