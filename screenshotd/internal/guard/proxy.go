package guard

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"
)

// maxTunnels is how many CONNECT tunnels there may be at once. A browser keeps 32
// connections to its proxy per browser context; what is above that for a dozen of
// them is a page at mischief.
const maxTunnels = 512

// proxy is the forward proxy of a Guard, on a loopback port of its own.
type proxy struct {
	guard   *Guard
	server  http.Server
	forward httputil.ReverseProxy
	addr    string

	mu      sync.Mutex
	tunnels map[net.Conn]struct{} // the browser's ends
	closed  bool
	wg      sync.WaitGroup
}

func (p *proxy) init(g *Guard) {
	quiet := log.New(io.Discard, "", 0)
	p.guard = g
	p.tunnels = map[net.Conn]struct{}{}
	p.forward = httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {}, // as it is, and no X-Forwarded-For
		Transport: &http.Transport{
			DialContext:           g.dial,
			DisableCompression:    true, // what the browser asked for, it shall have
			MaxIdleConns:          64,
			MaxIdleConnsPerHost:   8,
			IdleConnTimeout:       15 * time.Second,
			ResponseHeaderTimeout: 30 * time.Second,
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) { answer(w, err) },
		ErrorLog:     quiet,
	}
	p.server = http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second, ErrorLog: quiet}
}

// Start makes the guard a proxy on a free loopback port.
func (g *Guard) Start() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("screenshotd: the proxy of the browser: %w", err)
	}
	p := &g.proxy
	p.addr = l.Addr().String()
	p.wg.Go(func() { _ = p.server.Serve(l) })
	return nil
}

// Addr is host:port of the proxy, for --proxy-server.
func (g *Guard) Addr() string { return g.proxy.addr }

// Close ends the proxy and every connection through it.
func (g *Guard) Close() error {
	p := &g.proxy
	p.mu.Lock()
	p.closed = true
	for c := range p.tunnels {
		_ = c.Close() // the server has forgotten those
	}
	p.mu.Unlock()
	err := p.server.Close()
	p.wg.Wait()
	p.forward.Transport.(*http.Transport).CloseIdleConnections()
	return err
}

// ServeHTTP forwards one request, or makes a tunnel.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodConnect:
		p.connect(w, r)
	case !r.URL.IsAbs():
		http.Error(w, "this is a proxy: there is nothing here", http.StatusBadRequest)
	case r.URL.Scheme != "http":
		answer(w, fmt.Errorf("%w: scheme %q", ErrBlocked, r.URL.Scheme))
	case p.guard.inside(r.URL) != nil:
		p.guard.inside(r.URL).ServeHTTP(w, r)
	default:
		p.forward.ServeHTTP(w, r)
	}
}

// connect makes a tunnel to where the browser wants to speak TLS or WebSocket.
func (p *proxy) connect(w http.ResponseWriter, r *http.Request) {
	out, err := p.guard.dial(r.Context(), "tcp", r.Host)
	if err != nil {
		answer(w, err)
		return
	}
	defer func() { _ = out.Close() }()
	in, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		answer(w, err)
		return
	}
	defer func() { _ = in.Close() }()
	if err := p.enter(in); err != nil {
		return
	}
	defer p.leave(in)
	if _, err := io.WriteString(in, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	// What the browser sent behind its CONNECT is in the buffer.
	var both sync.WaitGroup
	both.Go(func() { flow(out, in, io.MultiReader(io.LimitReader(buf, int64(buf.Reader.Buffered())), in)) })
	both.Go(func() { flow(in, out, out) })
	both.Wait()
}

func (p *proxy) enter(c net.Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return net.ErrClosed
	case len(p.tunnels) >= maxTunnels:
		return errors.New("too many tunnels")
	}
	p.tunnels[c] = struct{}{}
	p.wg.Add(1)
	return nil
}

func (p *proxy) leave(c net.Conn) {
	p.mu.Lock()
	delete(p.tunnels, c)
	p.mu.Unlock()
	p.wg.Done()
}

// flow copies what src brings from one end to the other, and passes its end on. If
// that fails both ends are closed, so that the other flow does not wait for what
// never comes.
func flow(to, from net.Conn, src io.Reader) {
	_, err := io.Copy(to, src)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	_ = to.Close()
	_ = from.Close()
}
