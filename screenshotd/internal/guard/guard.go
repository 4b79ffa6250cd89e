// Package guard is the browser's only way out. It is a forward proxy in this
// process that resolves a name once, looks at the address that it is about to
// dial, and refuses every one that is not a public unicast address.
//
// Checking a URL before it is opened is not enough: the browser resolves the name
// again, follows redirects, and loads images, frames and sockets that nobody
// checked. So the check stands where the connection is made, and the browser is
// started with no other way to make one.
package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// ErrBlocked is what a target is that must not be reached: not http or https, a
// port that is not allowed, or an address that is not public.
var ErrBlocked = errors.New("target blocked")

// DefaultPorts are the ports of http and https.
var DefaultPorts = []uint16{80, 443}

// dialTimeout is the most that one connection may take to be made, the resolving
// of its name included.
const dialTimeout = 10 * time.Second

// Exception is what may be reached although it is not public: a prefix, and one
// port or, with Port 0, each.
type Exception struct {
	Prefix netip.Prefix
	Port   uint16
}

// ParseException reads an address, an address with a port, or a prefix:
// 10.1.2.3, 10.1.2.3:8080, [fd00::1]:80, 10.0.0.0/8.
func ParseException(s string) (Exception, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return Exception{Prefix: p.Masked()}, nil
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return Exception{Prefix: single(ap.Addr()), Port: ap.Port()}, nil
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return Exception{Prefix: single(a)}, nil
	}
	return Exception{}, fmt.Errorf("%q is not an address, an address:port or a prefix, such as 10.1.2.3:8080 or 10.0.0.0/8", s)
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func (e Exception) covers(ap netip.AddrPort) bool {
	return e.Prefix.Contains(ap.Addr()) && (e.Port == 0 || e.Port == ap.Port())
}

// Options say what a Guard lets through. The zero value is the strict default.
type Options struct {
	// Ports that may be dialled. Empty: DefaultPorts.
	Ports []uint16

	// Allow are addresses that may be dialled although they are not public, on
	// any port if the exception names none.
	Allow []Exception

	// Inside are hosts of http that the proxy answers itself, by their handlers, and
	// dials nobody for. Give them names that do not exist.
	Inside map[string]http.Handler

	// Resolver resolves names. Nil: net.DefaultResolver.
	Resolver *net.Resolver

	// Logger is told of what was blocked. Nil: nothing is logged.
	Logger *slog.Logger
}

// Guard vets addresses, and proxies what passes.
type Guard struct {
	opt     Options
	ranges  *ssrf.Guardian // the special-purpose registries of IANA
	dialer  net.Dialer
	proxy   proxy
	blocked atomic.Uint64
}

// New makes a guard. Start makes it a proxy.
func New(o Options) *Guard {
	if len(o.Ports) == 0 {
		o.Ports = DefaultPorts
	}
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Guard{opt: o, ranges: ssrf.New(ssrf.WithPorts(o.Ports...))}
	g.dialer = net.Dialer{
		Timeout:  dialTimeout,
		Resolver: o.Resolver,
		// Control runs for each address that is dialled, after the name was
		// resolved and before a packet is sent.
		Control: func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("%w: %q: %v", ErrBlocked, address, err)
			}
			return g.vet(ap)
		},
	}
	g.proxy.init(g)
	return g
}

// vet refuses an address that must not be dialled.
func (g *Guard) vet(ap netip.AddrPort) error {
	// ::ffff:10.0.0.1 is 10.0.0.1 to the kernel.
	ap = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	if slices.ContainsFunc(g.opt.Allow, func(e Exception) bool { return e.covers(ap) }) {
		return nil
	}
	if err := g.ranges.SafeAddrPort(ap); err != nil {
		return fmt.Errorf("%w: %v", ErrBlocked, err)
	}
	return nil
}

// dial connects to host:port if the address that it stands for may be reached.
func (g *Guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := g.dialer.DialContext(ctx, network, address)
	if errors.Is(err, ErrBlocked) {
		g.blocked.Add(1)
		g.opt.Logger.Warn("screenshotd: blocked", "target", address, "why", err)
	}
	return conn, err
}

// Scheme refuses a URL that is not http or https, has no host, or carries a
// password. It asks nobody.
func Scheme(u *url.URL) error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%w: scheme %q: only http and https are captured", ErrBlocked, u.Scheme)
	case u.Hostname() == "":
		return fmt.Errorf("%w: the URL names no host", ErrBlocked)
	case u.User != nil:
		return fmt.Errorf("%w: the URL carries a user name or password", ErrBlocked)
	}
	return nil
}

// Check tells early, and in words, whether u may be reached: it resolves the host
// and vets every address. A name that cannot be resolved is a *net.DNSError.
//
// What it lets pass is vetted again when it is dialled, since a name may answer
// otherwise by then.
func (g *Guard) Check(ctx context.Context, u *url.URL) error {
	if err := Scheme(u); err != nil {
		return err
	}
	if g.inside(u) != nil {
		return nil
	}
	port, err := port(u)
	if err != nil {
		return err
	}
	addrs, err := g.opt.Resolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if err = g.vet(netip.AddrPortFrom(a, port)); err == nil {
			return nil // one will do: the dialer passes over the others
		}
	}
	g.blocked.Add(1)
	g.opt.Logger.Warn("screenshotd: blocked", "target", u.Host, "why", err)
	return err
}

// inside is the handler of a URL that is answered here; nil: it is not.
func (g *Guard) inside(u *url.URL) http.Handler {
	if u.Scheme != "http" {
		return nil
	}
	return g.opt.Inside[u.Host]
}

func port(u *url.URL) (uint16, error) {
	switch p := u.Port(); {
	case p != "":
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return 0, fmt.Errorf("%w: port %q", ErrBlocked, p)
		}
		return uint16(n), nil
	case u.Scheme == "https":
		return 443, nil
	default:
		return 80, nil
	}
}

// Blocked is how many targets were refused since the start.
func (g *Guard) Blocked() uint64 { return g.blocked.Load() }

// Marker is the header by which the proxy says that it answered itself, and not
// the target: "blocked" or "unreachable".
const Marker = "Screenshotd-Guard"

// answer is what the browser is told when there is no connection.
func answer(w http.ResponseWriter, err error) {
	status, why := http.StatusBadGateway, "unreachable"
	if errors.Is(err, ErrBlocked) {
		status, why = http.StatusForbidden, "blocked"
	}
	w.Header().Set(Marker, why)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = strings.NewReader(why + "\n").WriteTo(w)
}
