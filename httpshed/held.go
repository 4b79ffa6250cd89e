package httpshed

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

// held is what a request that was let in holds, and its context: the server's,
// which ends besides when a lease is lost.
//
// The slot is released when nobody has a share in it any more. The handler has
// one until it returns; Keep takes that one over, or makes another; a connection
// that was taken over has one until it is closed.
type held struct {
	context.Context
	shed  *Shedder
	lease *gotsem.Lease
	local *gotsem.Lease // nil without Options.Local
	outer *held         // of a Shedder around this one
	drain *drain
	more  []*drain // of Options.Also
	began time.Duration

	shares  atomic.Int32
	handler atomic.Bool // the handler's share is the handler's still
	ending  atomic.Pointer[ending]
	mu      sync.Mutex // taken to make ending
}

// ending is the context that ends with the lease. Most handlers never look, so it
// is made when one does.
type ending struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	stops  []func() bool
}

// heldKey finds a held among the values of a context.
type heldKey struct{}

func (s *Shedder) hold(ctx context.Context, a asker, lease, local *gotsem.Lease) *held {
	h := &held{Context: ctx, shed: s, lease: lease, local: local, began: s.now()}
	h.outer, _ = ctx.Value(heldKey{}).(*held)
	s.drains.begin(h, a)
	h.shares.Store(1)
	h.handler.Store(true)
	return h
}

// serve runs the handler. However that ends, its share in the slot ends too.
func (h *held) serve(w http.ResponseWriter, r *http.Request, body io.ReadCloser, next http.Handler) {
	defer h.returned()
	in := r.WithContext(h)
	if body != nil {
		in.Body = body
	}
	if r.ProtoMajor == 1 && (len(r.Header["Upgrade"]) > 0 || r.Method == http.MethodConnect) {
		w = &upgradeWriter{ResponseWriter: w, held: h}
	}
	next.ServeHTTP(w, in)
	if r.MultipartForm == nil {
		r.MultipartForm = in.MultipartForm // net/http removes the files of the request that it knows
	}
}

func (h *held) returned() {
	if h.handler.CompareAndSwap(true, false) {
		h.drop()
	}
}

// Keep takes the slot of a request over from the Shedder, which then does not give
// it back when the handler returns: release does. Ctx is the request's, or made
// from it. So a slot follows the work:
//
//	release := httpshed.Keep(r.Context())
//	go func() { defer release(); render() }()        // work that outlives its request
//
//	release := httpshed.Keep(r.Context())
//	defer release()                                  // should it panic
//	picture := render()
//	release()                                        // a slow reader holds no slot
//	w.Write(picture)
//
// Release may be called twice. If Keep is called more than once, the slot is held
// until each release was called. Without a slot (the request was skipped, or let
// through by Options.Shadow) Keep and release do nothing. With a Shedder around
// another, the slots of both are kept.
//
// A connection that is taken over after an upgrade (a WebSocket), or after CONNECT,
// keeps the slot by itself until it is closed: for such requests alone the handler
// gets a ResponseWriter that is not the server's own, with Hijack, Flush and Unwrap.
// One that is taken over without that needs Keep.
func Keep(ctx context.Context) (release func()) {
	h, _ := ctx.Value(heldKey{}).(*held)
	if h == nil {
		return func() {}
	}
	return sync.OnceFunc(h.keep())
}

// keep returns what gives up a share in each of the slots of h and those around it.
func (h *held) keep() func() {
	mine := h.handler.CompareAndSwap(true, false) || h.share()
	var outer func()
	if h.outer != nil {
		outer = h.outer.keep()
	}
	return func() {
		if mine {
			h.drop()
		}
		if outer != nil {
			outer()
		}
	}
}

// share makes another share. It returns false if the slot was released.
func (h *held) share() bool {
	for {
		n := h.shares.Load()
		if n == 0 {
			return false
		}
		if h.shares.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// drop ends a share, and with the last one the slot.
func (h *held) drop() {
	if h.shares.Add(-1) > 0 {
		return
	}
	if e := h.ending.Load(); e != nil {
		for _, stop := range e.stops {
			stop()
		}
	}
	if h.local != nil {
		release((*values)(h), h.local)
	}
	release((*values)(h), h.lease)
	h.shed.drains.end(h, h.shed.now())
}

// values is the context of a held without its end, for giving the slot back. It is
// h itself, since each request would pay for another.
type values held

func (v *values) Deadline() (time.Time, bool) { return time.Time{}, false }
func (v *values) Done() <-chan struct{}       { return nil }
func (v *values) Err() error                  { return nil }
func (v *values) Value(key any) any           { return v.Context.Value(key) }

// Lease returns the lease of the request whose context ctx is, or is made from,
// for its Fence and for its Context, which goes on when the request's ends. It is
// nil for a request that holds no slot. It is released by the Shedder or by what
// Keep returned, not by its own Release.
func Lease(ctx context.Context) *gotsem.Lease {
	h, _ := ctx.Value(heldKey{}).(*held)
	if h == nil {
		return nil
	}
	return h.lease
}

// Value implements context.Context.
func (h *held) Value(key any) any {
	if key == (heldKey{}) {
		return h
	}
	if e := h.ending.Load(); e != nil {
		return e.ctx.Value(key) // so that contexts made from h find what ends it
	}
	return h.Context.Value(key)
}

// Done implements context.Context.
func (h *held) Done() <-chan struct{} { return h.end().ctx.Done() }

// Err implements context.Context. It sees the loss of a lease at once, also after
// a suspend of the process.
func (h *held) Err() error {
	for _, l := range [...]*gotsem.Lease{h.lease, h.local} {
		if cause := loss(l); cause != nil {
			e := h.end()
			e.cancel(cause)
			return e.ctx.Err()
		}
	}
	if e := h.ending.Load(); e != nil {
		return e.ctx.Err()
	}
	return h.Context.Err()
}

// loss is why l ended, if it was not released.
func loss(l *gotsem.Lease) error {
	if l == nil {
		return nil
	}
	ctx := l.Context()
	if ctx.Err() == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

func (h *held) end() *ending {
	if e := h.ending.Load(); e != nil {
		return e
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.ending.Load(); e != nil {
		return e
	}
	e := new(ending)
	e.ctx, e.cancel = context.WithCancelCause(h.Context)
	if h.shares.Load() > 0 {
		for _, l := range [...]*gotsem.Lease{h.lease, h.local} {
			if l == nil {
				continue
			}
			e.stops = append(e.stops, context.AfterFunc(l.Context(), func() {
				if cause := loss(l); cause != nil {
					e.cancel(cause)
				}
			}))
		}
	}
	h.ending.Store(e)
	return e
}

// upgradeWriter notices that the connection was taken over.
type upgradeWriter struct {
	http.ResponseWriter
	held *held
}

// Unwrap is for http.ResponseController.
func (w *upgradeWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush implements http.Flusher.
func (w *upgradeWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Hijack implements http.Hijacker. The connection holds the slot until it is closed.
func (w *upgradeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil || !w.held.share() {
		return conn, rw, err
	}
	return &heldConn{Conn: conn, drop: sync.OnceFunc(w.held.drop)}, rw, nil
}

// heldConn is a connection that holds a slot.
type heldConn struct {
	net.Conn
	drop func()
}

// Close closes the connection, and gives the slot back.
func (c *heldConn) Close() error {
	defer c.drop()
	return c.Conn.Close()
}

// CloseWrite closes the half that is written to, where the connection can.
func (c *heldConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// NetConn returns the connection beneath, as (*tls.Conn).NetConn does.
func (c *heldConn) NetConn() net.Conn { return c.Conn }
