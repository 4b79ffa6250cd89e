package httpshed

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/door"
)

// serve runs the handler. However that ends, its share in the slot ends too.
func serve(h *door.Held, w http.ResponseWriter, r *http.Request, body io.ReadCloser, next http.Handler) {
	defer h.Returned()
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
func Keep(ctx context.Context) (release func()) { return door.Keep(ctx) }

// Lease returns the lease of the request whose context ctx is, or is made from,
// for its Fence and for its Context, which goes on when the request's ends. It is
// nil for a request that holds no slot. It is released by the Shedder or by what
// Keep returned, not by its own Release.
func Lease(ctx context.Context) *gotsem.Lease {
	if h := door.Of(ctx); h != nil {
		return h.Lease()
	}
	return nil
}

// upgradeWriter notices that the connection was taken over.
type upgradeWriter struct {
	http.ResponseWriter
	held *door.Held
}

// Unwrap is for http.ResponseController.
func (w *upgradeWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush implements http.Flusher.
func (w *upgradeWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Hijack implements http.Hijacker. The connection holds the slot until it is closed.
func (w *upgradeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil || !w.held.Share() {
		return conn, rw, err
	}
	return &heldConn{Conn: conn, drop: sync.OnceFunc(w.held.Drop)}, rw, nil
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
