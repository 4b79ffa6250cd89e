// Package redisurl makes a go-redis client from one URL, for a single server,
// Sentinel or a Cluster, and never shows the password that is in it.
//
//	redis://[user:password@]host[:port][/db]
//	redis+sentinel://[user:password@]host[:port][,host[:port]…]/master[?db=1]
//	redis+cluster://[user:password@]host[:port][,host[:port]…]
//	unix://[user:password@]/path/to/socket[?db=1]
//
// With rediss in the place of redis the connection is TLS, 1.2 or later, checked
// against the system's roots and the name that is dialled. Ports are 6379, and
// 26379 for Sentinel, if they are not given.
//
// Options follow a question mark: db, protocol, client_name, pool_size,
// dial_timeout, read_timeout, write_timeout, sentinel_username,
// sentinel_password, tls_ca, tls_cert, tls_key (files in PEM), tls_server_name.
//
// Neither the standard library's nor go-redis's own parser is used on the whole:
// both quote the URL in their errors, password and all.
package redisurl

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Kind is what stands behind a URL.
type Kind string

// The kinds of a Target.
const (
	Single   Kind = "redis"
	Sentinel Kind = "redis+sentinel"
	Cluster  Kind = "redis+cluster"
	Socket   Kind = "unix"
)

// Target is a parsed URL. It is printed without its credentials, by every verb.
type Target struct {
	Kind  Kind
	Addrs []string // host:port of each, or the path of the socket
	TLS   bool

	options *redis.UniversalOptions
	secrets []string // as they are, and as they were written
}

// Parse reads a URL. Its errors say what is wrong and quote nothing that could be
// a part of the password, which is anything but the scheme: who forgets to escape
// a slash in a password has it where others have the host.
func Parse(raw string) (*Target, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	t := &Target{options: &redis.UniversalOptions{
		ContextTimeoutEnabled: true,
		DialerRetries:         1, // by default 5, 100 ms apart: a refused port would end as a timeout, its cause untold
	}}
	t.Kind, t.TLS = kindOf(scheme)
	if !ok || t.Kind == "" {
		return nil, errors.New("redis URL: it must begin with redis://, rediss://, redis+sentinel://, rediss+sentinel://, redis+cluster://, rediss+cluster:// or unix://")
	}
	authority, path, query := split(rest)
	if strings.ContainsAny(path+query, "@") || strings.Contains(rest, "#") {
		return nil, errors.New("redis URL: an @ after the host, or a #: in the user name and the password write / as %2F, ? as %3F, # as %23, @ as %40")
	}
	hosts := authority
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		if err := t.credentials(authority[:at]); err != nil {
			return nil, err
		}
		hosts = authority[at+1:]
	}
	if err := t.addresses(hosts, path); err != nil {
		return nil, err
	}
	if err := t.path(path); err != nil {
		return nil, err
	}
	if err := t.query(query); err != nil {
		return nil, err
	}
	return t, nil
}

func kindOf(scheme string) (kind Kind, secure bool) {
	switch scheme {
	case "rediss", "rediss+sentinel", "rediss+cluster":
		return Kind("redis" + strings.TrimPrefix(scheme, "rediss")), true
	case "redis", "redis+sentinel", "redis+cluster", "unix":
		return Kind(scheme), false
	}
	return "", false
}

// split cuts what follows the scheme where RFC 3986 (3.2) does.
func split(rest string) (authority, path, query string) {
	rest, query, _ = strings.Cut(rest, "?")
	if slash := strings.Index(rest, "/"); slash >= 0 {
		return rest[:slash], rest[slash:], query
	}
	return rest, "", query
}

func (t *Target) credentials(userinfo string) error {
	user, password, both := strings.Cut(userinfo, ":")
	plain, err := url.PathUnescape(user)
	if err == nil && both {
		t.options.Password, err = url.PathUnescape(password)
	}
	if err != nil {
		return errors.New("redis URL: the user name or the password has a % that is not followed by two hexadecimal digits: write % as %25")
	}
	t.options.Username = plain
	if both {
		t.hide(password)
		t.hide(t.options.Password)
	} else { // a user whose password comes from elsewhere; or somebody forgot the colon before a password
		t.hide(user)
		t.hide(plain)
	}
	return nil
}

// hide adds to what Redact takes out. What is shorter than four bytes would
// garble every message and give nothing away that is worth guessing.
func (t *Target) hide(s string) {
	if len(s) >= 4 && !slices.Contains(t.secrets, s) {
		t.secrets = append(t.secrets, s)
		slices.SortFunc(t.secrets, func(a, b string) int { return len(b) - len(a) }) // the longest first
	}
}

func (t *Target) addresses(hosts, path string) error {
	if t.Kind == Socket {
		if hosts != "" || len(path) < 2 {
			return errors.New("redis URL: unix:// takes the absolute path of a socket, with three slashes: unix:///run/redis.sock")
		}
		return nil
	}
	standard := "6379"
	if t.Kind == Sentinel {
		standard = "26379"
	}
	for host := range strings.SplitSeq(hosts, ",") {
		addr, err := address(host, standard)
		if err != nil {
			return err
		}
		t.Addrs = append(t.Addrs, addr)
	}
	if t.Kind == Single && len(t.Addrs) > 1 {
		return fmt.Errorf("redis URL: %d hosts: that is redis+sentinel:// or redis+cluster://", len(t.Addrs))
	}
	return nil
}

// address completes host[:port].
func address(s, standard string) (string, error) {
	host, port := s, standard
	switch end := strings.LastIndex(s, "]"); {
	case strings.HasPrefix(s, "[") && end > 0: // an IPv6 address
		host = s[1:end]
		if rest := s[end+1:]; rest != "" {
			if !strings.HasPrefix(rest, ":") {
				return "", errors.New("redis URL: something other than :port follows the ] of an address")
			}
			port = rest[1:]
		}
	case strings.Count(s, ":") == 1:
		host, port, _ = strings.Cut(s, ":")
	case strings.Contains(s, ":"):
		return "", errors.New("redis URL: a host with more than one colon: write an IPv6 address in brackets, and : in a password as %3A")
	}
	if host == "" {
		return "", errors.New("redis URL: a host is missing: redis://[user:password@]host[:port]")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", errors.New("redis URL: a port is not a number from 1 to 65535 (in the user name and the password write / as %2F, ? as %3F)")
	}
	if strings.ContainsAny(host, "%[] ") {
		return "", errors.New("redis URL: a host has a character that no host has")
	}
	return net.JoinHostPort(host, port), nil
}

// path is the number of the database, the name of the primary, or the socket.
func (t *Target) path(path string) error {
	plain, err := url.PathUnescape(path)
	if err != nil {
		return errors.New("redis URL: the path has a % that is not followed by two hexadecimal digits")
	}
	name := strings.Trim(plain, "/")
	switch t.Kind {
	case Socket:
		t.Addrs = []string{plain} // an address that begins with / is a socket's
	case Sentinel:
		if name == "" || strings.Contains(name, "/") {
			return errors.New("redis URL: redis+sentinel:// ends with the name that the sentinels know the primary by: redis+sentinel://host:26379/mymaster")
		}
		t.options.MasterName = name
	case Cluster:
		if name != "" && name != "0" {
			return errors.New("redis URL: a Cluster has database 0 only: end the URL after the hosts")
		}
	default:
		if name != "" {
			return t.database(name)
		}
	}
	return nil
}

func (t *Target) database(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return errors.New("redis URL: the database is not a number: redis://host:6379/0")
	}
	if t.Kind == Cluster && n != 0 {
		return errors.New("redis URL: a Cluster has database 0 only")
	}
	t.options.DB = n
	return nil
}

// files are the TLS options, which belong together.
type files struct{ ca, cert, key, server string }

func (t *Target) query(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("redis URL: what follows the ? cannot be read: write it as name=value&name=value, with % as %25 and ; as %3B")
	}
	for _, name := range []string{"sentinel_password", "password"} { // the second is refused, and may be in the way
		for _, v := range values[name] {
			t.hide(v)
		}
	}
	var tls files
	o := t.options
	duration := func(d *time.Duration) func(string) error {
		return func(s string) (err error) {
			if *d, err = time.ParseDuration(s); err == nil && *d <= 0 {
				err = errors.New("above zero")
			}
			return err
		}
	}
	number := func(n *int) func(string) error {
		return func(s string) (err error) {
			if *n, err = strconv.Atoi(s); err == nil && *n < 1 {
				err = errors.New("at least 1")
			}
			return err
		}
	}
	text := func(p *string) func(string) error {
		return func(s string) error { *p = s; return nil }
	}
	known := map[string]func(string) error{
		"db":                t.database,
		"protocol":          number(&o.Protocol),
		"client_name":       text(&o.ClientName),
		"pool_size":         number(&o.PoolSize),
		"dial_timeout":      duration(&o.DialTimeout),
		"read_timeout":      duration(&o.ReadTimeout),
		"write_timeout":     duration(&o.WriteTimeout),
		"sentinel_username": text(&o.SentinelUsername),
		"sentinel_password": text(&o.SentinelPassword),
		"tls_ca":            text(&tls.ca),
		"tls_cert":          text(&tls.cert),
		"tls_key":           text(&tls.key),
		"tls_server_name":   text(&tls.server),
	}
	for name, vs := range values {
		set := known[name]
		switch {
		case set == nil: // not quoted: it may be half a password
			return fmt.Errorf("redis URL: an option that is not known; these are: %s", strings.Join(slices.Sorted(keys(known)), ", "))
		case len(vs) > 1:
			return fmt.Errorf("redis URL: option %s is there %d times", name, len(vs))
		case set(vs[0]) != nil:
			return fmt.Errorf("redis URL: option %s has a value that it cannot have: numbers are above zero, times are such as 500ms or 5s", name)
		}
	}
	if t.Kind != Sentinel && (o.SentinelUsername != "" || o.SentinelPassword != "") {
		return errors.New("redis URL: sentinel_username and sentinel_password belong to redis+sentinel://")
	}
	return t.secure(tls)
}

func keys[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// secure sets up TLS. The server's name is left to each dial, but for one that was
// given: the nodes of a Cluster have different ones.
func (t *Target) secure(f files) error {
	if !t.TLS {
		if f != (files{}) {
			return errors.New("redis URL: tls_ options without TLS: begin it with rediss://, rediss+sentinel:// or rediss+cluster://")
		}
		return nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.server}
	if f.ca != "" {
		roots, err := readRoots(f.ca)
		if err != nil {
			return fmt.Errorf("redis URL: tls_ca: %w", err)
		}
		config.RootCAs = roots
	}
	if (f.cert == "") != (f.key == "") {
		return errors.New("redis URL: tls_cert and tls_key go together")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return fmt.Errorf("redis URL: tls_cert and tls_key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	t.options.TLSConfig = config
	return nil
}

func readRoots(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("the file has no certificate in PEM")
	}
	return roots, nil
}

// ErrPlain is that a TLS option was given for a connection without TLS.
var ErrPlain = errors.New("the URL is one without TLS: begin it with rediss://, rediss+sentinel:// or rediss+cluster://")

// SetRoots has the server's certificate checked against those of a file in PEM, in the
// place of the system's.
func (t *Target) SetRoots(file string) error {
	if !t.TLS {
		return ErrPlain
	}
	roots, err := readRoots(file)
	if err == nil {
		t.options.TLSConfig.RootCAs = roots
	}
	return err
}

// SetInsecure has the server's certificate not checked: whoever is on the way can
// read the password.
func (t *Target) SetInsecure() error {
	if !t.TLS {
		return ErrPlain
	}
	t.options.TLSConfig.InsecureSkipVerify = true
	return nil
}

// Handshake connects to the first address and says hello in TLS, to find out why
// nothing is answered: a server without TLS waits for the end of a line, for ever.
// Without TLS it does nothing.
func (t *Target) Handshake(ctx context.Context) error {
	if !t.TLS {
		return nil
	}
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", t.Addrs[0])
	if err != nil {
		return err
	}
	defer raw.Close()
	config := t.options.TLSConfig.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(t.Addrs[0])
	}
	if err := tls.Client(raw, config).HandshakeContext(ctx); err != nil {
		return fmt.Errorf("%s accepts connections and does not complete a TLS handshake (%w): is it a port without TLS? Then the URL begins with redis, not rediss", t.Addrs[0], err)
	}
	return nil
}

// SetPassword replaces the password: for one that is read from a file.
func (t *Target) SetPassword(password string) {
	t.options.Password = password
	t.hide(password)
}

// Client makes a client. It dials nothing yet. Whoever makes it closes it.
//
// It goes by the deadlines of contexts, which go-redis by default does not.
func (t *Target) Client() redis.UniversalClient {
	o := *t.options
	o.Addrs = slices.Clone(t.Addrs)
	o.IsClusterMode = t.Kind == Cluster
	return redis.NewUniversalClient(&o)
}

// String returns the URL without user, password and options.
func (t *Target) String() string {
	var b strings.Builder
	kind := string(t.Kind)
	if t.TLS {
		kind = "rediss" + strings.TrimPrefix(kind, "redis")
	}
	b.WriteString(kind + "://" + strings.Join(t.Addrs, ","))
	switch {
	case t.Kind == Sentinel:
		b.WriteString("/" + t.options.MasterName)
		if t.options.DB > 0 {
			fmt.Fprintf(&b, "?db=%d", t.options.DB)
		}
	case t.options.DB > 0 && t.Kind == Single:
		fmt.Fprintf(&b, "/%d", t.options.DB)
	case t.options.DB > 0:
		fmt.Fprintf(&b, "?db=%d", t.options.DB)
	}
	return b.String()
}

// Format keeps %v, %+v, %#v and all the others to what String shows.
func (t *Target) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(t.String())) }

// Redact takes the credentials out of a text that came from elsewhere: a server
// that does not know HELLO or AUTH repeats their arguments in its error.
func (t *Target) Redact(s string) string {
	for _, secret := range t.secrets {
		s = strings.ReplaceAll(s, secret, "***")
	}
	return s
}
