package guard

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// One address or two of each range that is not public unicast, from the IPv4 and
// IPv6 special-purpose registries of IANA, in spellings that mean the same.
var reserved = []string{
	"0.0.0.0", "0.1.2.3", // this network
	"10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", // private
	"100.64.0.1", "100.127.255.255", // shared, behind a carrier's NAT
	"127.0.0.1", "127.255.255.254", // loopback
	"169.254.0.1", "169.254.169.254", // link-local, and where clouds keep their secrets
	"192.0.0.1", "192.0.0.170", // IETF
	"192.0.2.1", "198.51.100.1", "203.0.113.1", // documentation
	"192.88.99.1",                  // 6to4 relays
	"198.18.0.1", "198.19.255.255", // benchmarks
	"224.0.0.1", "239.255.255.255", // multicast
	"240.0.0.1", "255.255.255.255", // reserved, broadcast
	"::", "::1", "0:0:0:0:0:0:0:1",
	"::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", // v4-mapped
	"::127.0.0.1",            // v4-compatible
	"64:ff9b::7f00:1",        // NAT64 of 127.0.0.1
	"64:ff9b:1::a00:1",       // local NAT64
	"100::1",                 // discard
	"2001::1",                // Teredo
	"2001:20::1",             // ORCHIDv2
	"2001:db8::1", "3fff::1", // documentation
	"2002:7f00:1::", "2002:a00:1::1", // 6to4 of private addresses
	"5f00::1",                 // segment routing
	"fc00::1", "fd12:3456::1", // unique local
	"fe80::1", "fec0::1", // link-local, site-local
	"ff02::1", // multicast
}

func TestReservedAddressesAreBlocked(t *testing.T) {
	g := New(Options{})
	for _, a := range reserved {
		addr := netip.MustParseAddr(a)
		if err := g.vet(netip.AddrPortFrom(addr, 80)); !errors.Is(err, ErrBlocked) {
			t.Errorf("%s: got %v, want blocked", a, err)
		}
		host := a
		if addr.Is6() {
			host = "[" + a + "]"
		}
		if err := g.Check(t.Context(), &url.URL{Scheme: "http", Host: host}); !errors.Is(err, ErrBlocked) {
			t.Errorf("http://%s: got %v, want blocked", host, err)
		}
		// At the dial nothing may leave, whatever was checked before.
		conn, err := g.dial(t.Context(), "tcp", net.JoinHostPort(a, "80"))
		if !errors.Is(err, ErrBlocked) {
			t.Errorf("dial %s: got %v, want blocked", a, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

func TestPublicAddressesPass(t *testing.T) {
	g := New(Options{})
	for _, a := range []string{"1.1.1.1", "8.8.8.8", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "198.17.0.1", "223.255.255.255", "2606:4700::1", "2a00:1450::1"} {
		if err := g.vet(netip.MustParseAddrPort(net.JoinHostPort(a, "443"))); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
	for _, port := range []uint16{0, 22, 25, 6379, 8080} {
		if err := g.vet(netip.AddrPortFrom(netip.MustParseAddr("1.1.1.1"), port)); !errors.Is(err, ErrBlocked) {
			t.Errorf("port %d: got %v, want blocked", port, err)
		}
	}
}

func TestURLs(t *testing.T) {
	g := New(Options{})
	for _, u := range []string{
		"file:///etc/passwd", "ftp://1.1.1.1/", "gopher://1.1.1.1:70/", "data:text/html,x", "javascript:1", "about:blank",
		"view-source:http://1.1.1.1/", "chrome://version", "ws://1.1.1.1/", "//1.1.1.1/", "/etc/passwd", "http:///x",
		"http://user:pw@1.1.1.1/", "http://1.1.1.1:6379/", "https://1.1.1.1:0/",
		"http://localhost/", "http://[::ffff:7f00:1]/", "http://[::1%25lo]/",
	} {
		parsed, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Check(t.Context(), parsed); !errors.Is(err, ErrBlocked) {
			t.Errorf("%s: got %v, want blocked", u, err)
		}
	}
}

func TestParseException(t *testing.T) {
	for s, want := range map[string]Exception{
		"10.1.2.3":       {Prefix: netip.MustParsePrefix("10.1.2.3/32")},
		"10.1.2.3:8080":  {Prefix: netip.MustParsePrefix("10.1.2.3/32"), Port: 8080},
		"10.1.2.3/8":     {Prefix: netip.MustParsePrefix("10.0.0.0/8")},
		"[fd00::1]:80":   {Prefix: netip.MustParsePrefix("fd00::1/128"), Port: 80},
		"fd00::/8":       {Prefix: netip.MustParsePrefix("fd00::/8")},
		"intranet.local": {},
	} {
		got, err := ParseException(s)
		if (err != nil) != (want == Exception{}) || got != want {
			t.Errorf("%s: got %v, %v; want %v", s, got, err, want)
		}
	}
}

// through makes a client of the guard's proxy.
func through(t *testing.T, g *Guard) *http.Client {
	t.Helper()
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	tr := &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: g.Addr()}),
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 10 * time.Second}
}

func exception(t *testing.T, s *httptest.Server) Exception {
	t.Helper()
	e, err := ParseException(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestProxy(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Via") != "" {
			t.Errorf("the proxy tells of itself: %v", r.Header)
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %s", r.Method, r.Host, body)
	})
	plain, secret := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secret.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	g := New(Options{Allow: []Exception{exception(t, plain), exception(t, secret), exception(t, closed)}})
	client := through(t, g)
	for _, s := range []*httptest.Server{plain, secret} {
		resp, err := client.Post(s.URL+"/x", "text/plain", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if want := "POST " + s.Listener.Addr().String() + " body"; string(got) != want {
			t.Errorf("%s: got %q, want %q", s.URL, got, want)
		}
	}
	for u, want := range map[string]string{"http://127.0.0.1:1/": "blocked", closed.URL: "unreachable"} {
		resp, err := client.Get(u)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got := resp.Header.Get(Marker); got != want {
			t.Errorf("%s: marked %q (%s), want %q", u, got, resp.Status, want)
		}
	}
	if _, err := client.Get("https://169.254.169.254/"); err == nil {
		t.Error("a tunnel was made to the metadata service")
	}
	if n := g.Blocked(); n != 2 {
		t.Errorf("%d blocked, want 2", n)
	}
	resp, err := http.Get("http://" + g.Addr() + "/") // not as a proxy
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a request that is not for a proxy: %s, want 400", resp.Status)
	}
	http.DefaultClient.CloseIdleConnections()
}

// A tunnel must not lose what either side says before the other listens, and must
// end when the guard does.
func TestTunnel(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = echo.Close() }()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	e, err := ParseException(echo.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	g := New(Options{Allow: []Exception{e}})
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	open := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\nearly", echo.Addr())
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("CONNECT: %v, %v", resp, err)
		}
		return c, r
	}

	c, r := open()
	_, _ = io.WriteString(c, " and late")
	_ = c.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(r); err != nil || string(got) != "early and late" {
		t.Errorf("echoed %q, %v", got, err)
	}
	_ = c.Close()

	c, r = open()
	defer func() { _ = c.Close() }()
	_ = g.Close()
	_, err = io.Copy(io.Discard, r)
	var late interface{ Timeout() bool }
	if errors.As(err, &late) && late.Timeout() {
		t.Error("the tunnel is still open after Close")
	}
}

func TestCheckHonoursItsContext(t *testing.T) {
	stuck := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	g := New(Options{Resolver: stuck})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := g.Check(ctx, &url.URL{Scheme: "http", Host: "example.test"}); err == nil || time.Since(begin) > 5*time.Second {
		t.Errorf("got %v after %v, want an error after 50 ms", err, time.Since(begin))
	}
}

// A name that is answered inside is so by http on its own port alone, and nobody is dialled
// for it; the names beside it are as blocked as ever.
func TestWhatIsInsideIsNotDialled(t *testing.T) {
	dialled := httptest.NewServer(http.NotFoundHandler())
	defer dialled.Close()
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "inside") })
	g := New(Options{Inside: map[string]http.Handler{"here.invalid": hello, dialled.Listener.Addr().String(): hello}})
	client := through(t, g)
	for _, u := range []string{"http://here.invalid/x", dialled.URL} {
		resp, err := client.Get(u)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(body) != "inside" {
			t.Errorf("%s: %s %q", u, resp.Status, body)
		}
	}
	for u, want := range map[string]bool{
		"http://here.invalid/": true, "http://here.invalid:81/": false, "https://here.invalid/": false,
		"http://not.here.invalid/": false, "http://user@here.invalid/": false,
	} {
		parsed, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Check(t.Context(), parsed); (err == nil) != want {
			t.Errorf("%s: %v, want that it passes: %v", u, err, want)
		}
	}
}
