package redisurl

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		raw    string
		kind   Kind
		tls    bool
		addrs  string
		db     int
		shown  string
		user   string
		secret string
	}{
		{raw: "redis://localhost", kind: Single, addrs: "localhost:6379", shown: "redis://localhost:6379"},
		{raw: "redis://h:1/3", kind: Single, addrs: "h:1", db: 3, shown: "redis://h:1/3"},
		{raw: "redis://h:1?db=3", kind: Single, addrs: "h:1", db: 3, shown: "redis://h:1/3"},
		{raw: "redis://[::1]:7/", kind: Single, addrs: "[::1]:7", shown: "redis://[::1]:7"},
		{raw: "redis://[::1]", kind: Single, addrs: "[::1]:6379", shown: "redis://[::1]:6379"},
		{raw: "redis://u:p%40ss%2F@h", kind: Single, addrs: "h:6379", shown: "redis://h:6379", user: "u", secret: "p@ss/"},
		{raw: "redis://u:p@ss@h", kind: Single, addrs: "h:6379", shown: "redis://h:6379", user: "u", secret: "p@ss"},
		{raw: "redis://:secret:with:colons@h", kind: Single, addrs: "h:6379", shown: "redis://h:6379", secret: "secret:with:colons"},
		{raw: "redis://:a+b@h", kind: Single, addrs: "h:6379", shown: "redis://h:6379", secret: "a+b"},
		{raw: "rediss://u:secret@h:2", kind: Single, tls: true, addrs: "h:2", shown: "rediss://h:2", user: "u", secret: "secret"},
		{raw: "redis+sentinel://a,b:2,[::1]/main?db=2&sentinel_password=hidden", kind: Sentinel, addrs: "a:26379 b:2 [::1]:26379", db: 2, shown: "redis+sentinel://a:26379,b:2,[::1]:26379/main?db=2"},
		{raw: "rediss+sentinel://a/main", kind: Sentinel, tls: true, addrs: "a:26379", shown: "rediss+sentinel://a:26379/main"},
		{raw: "redis+cluster://:secret@a:1,b:2,c:3", kind: Cluster, addrs: "a:1 b:2 c:3", shown: "redis+cluster://a:1,b:2,c:3", secret: "secret"},
		{raw: "rediss+cluster://a", kind: Cluster, tls: true, addrs: "a:6379", shown: "rediss+cluster://a:6379"},
		{raw: "unix:///run/redis.sock?db=1", kind: Socket, addrs: "/run/redis.sock", db: 1, shown: "unix:///run/redis.sock?db=1"},
	} {
		got, err := Parse(c.raw)
		if err != nil {
			t.Errorf("%s: %v", c.raw, err)
			continue
		}
		if got.Kind != c.kind || got.TLS != c.tls || strings.Join(got.Addrs, " ") != c.addrs || got.options.DB != c.db {
			t.Errorf("%s: kind %s, tls %v, addrs %q, db %d", c.raw, got.Kind, got.TLS, got.Addrs, got.options.DB)
		}
		if got.String() != c.shown {
			t.Errorf("%s: shown as %s, want %s", c.raw, got, c.shown)
		}
		if got.options.Username != c.user || got.options.Password != c.secret {
			t.Errorf("%s: user %q, password %q", c.raw, got.options.Username, got.options.Password)
		}
		if (got.options.TLSConfig != nil) != c.tls || c.tls && got.options.TLSConfig.MinVersion != tls.VersionTLS12 {
			t.Errorf("%s: TLS config %+v", c.raw, got.options.TLSConfig)
		}
	}
}

func TestOptions(t *testing.T) {
	got, err := Parse("redis://h?protocol=2&client_name=c&pool_size=3&dial_timeout=1s&read_timeout=2s&write_timeout=3s")
	if err != nil {
		t.Fatal(err)
	}
	o := got.options
	if o.Protocol != 2 || o.ClientName != "c" || o.PoolSize != 3 || o.DialTimeout != time.Second || o.ReadTimeout != 2*time.Second || o.WriteTimeout != 3*time.Second {
		t.Errorf("options %+v", o)
	}
	if !o.ContextTimeoutEnabled {
		t.Error("deadlines of contexts are not honoured")
	}
}

func TestClientOfEachKind(t *testing.T) {
	for raw, want := range map[string]redis.UniversalClient{
		"redis://h":                (*redis.Client)(nil),
		"unix:///s":                (*redis.Client)(nil),
		"redis+sentinel://h/m":     (*redis.Client)(nil),
		"redis+cluster://one-node": (*redis.ClusterClient)(nil),
	} {
		target, err := Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		rdb := target.Client()
		if got := reflect.TypeOf(rdb); got != reflect.TypeOf(want) {
			t.Errorf("%s: a %v", raw, got)
		}
		if c, ok := rdb.(*redis.Client); ok && target.Kind == Socket && c.Options().Network != "unix" {
			t.Errorf("%s: network %s", raw, c.Options().Network)
		}
		rdb.Close()
	}
}

// A password must not be shown, wherever it is in a URL that is wrong.
func TestErrorsShowNoPassword(t *testing.T) {
	const canary = "c4n4ry"
	for _, raw := range []string{
		canary,
		canary + "@h:6379",
		"redis:" + canary,
		"redis:/" + canary,
		canary + "://u@h",
		"http://u:" + canary + "@h",
		"REDIS://u:" + canary + "@h",
		"redis://u:" + canary + "@h:notaport",
		"redis://u:" + canary + "@h:0",
		"redis://u:" + canary + "@h:70000",
		"redis://u:" + canary + "@",
		"redis://u:" + canary + "@:1",
		"redis://u:" + canary + "@h1:1,h2:2",
		"redis://u:" + canary + "@::1",
		"redis://u:" + canary + "@[::1",
		"redis://u:" + canary + "@[::1]x",
		"redis://u:" + canary + "@h/x",
		"redis://u:" + canary + "@h/-1",
		"redis://u:" + canary + "@h/%zz",
		"redis://u:" + canary + "@h?" + canary + "=1",
		"redis://u:" + canary + "@h?password=" + canary,
		"redis://u:" + canary + "@h?db=" + canary,
		"redis://u:" + canary + "@h?pool_size=" + canary,
		"redis://u:" + canary + "@h?dial_timeout=" + canary,
		"redis://u:" + canary + "@h?db=1;" + canary,
		"redis://u:" + canary + "@h?db=1&db=2",
		"redis://u:" + canary + "@h#x",
		"redis://u:" + canary + "@h?sentinel_password=" + canary,
		"redis://u:" + canary + "@h?tls_ca=x",
		"redis://u:" + canary + "%@h",
		"redis://u:" + canary + "/more@h",
		"redis://u:more/" + canary + "@h",
		"redis://u:more?" + canary + "@h",
		"redis://u:more#" + canary + "@h",
		"redis://u:" + canary,
		"redis://" + canary + ":u",
		"redis://u:1/" + canary,
		"redis://u:1?" + canary,
		"rediss://u:" + canary + "@h?tls_ca=/does/not/exist",
		"rediss://u:" + canary + "@h?tls_cert=x",
		"rediss://u:" + canary + "@h?tls_cert=/no&tls_key=/no",
		"redis+sentinel://u:" + canary + "@h",
		"redis+sentinel://u:" + canary + "@h/a/b",
		"redis+cluster://u:" + canary + "@h/1",
		"redis+cluster://u:" + canary + "@h?db=1",
		"unix://u:" + canary + "@",
		"unix://h/" + canary,
	} {
		target, err := Parse(raw)
		if err == nil {
			t.Errorf("%s: taken, as %v", raw, target)
			continue
		}
		if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), canary) {
			t.Errorf("%s: the error shows the password: %v", raw, err)
		}
		if len(err.Error()) < 30 {
			t.Errorf("%s: the error helps nobody: %v", raw, err)
		}
	}
}

func TestTargetShowsNoPassword(t *testing.T) {
	const canary = "c4n4ry"
	target, err := Parse("redis+sentinel://u:" + canary + "%20one@h/m?sentinel_password=" + canary + "two")
	if err != nil {
		t.Fatal(err)
	}
	target.SetPassword(canary + "three")
	js, err := json.Marshal(target)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		fmt.Sprint(target), fmt.Sprintf("%v %+v %#v %s %q %x", target, target, target, target, target, target), string(js),
		target.Redact("ERR unknown command 'AUTH', with args beginning with: 'u' '" + canary + " one'"),
		target.Redact(canary + "%20one " + canary + "two " + canary + "three"),
	} {
		if strings.Contains(s, canary) {
			t.Errorf("shown: %s", s)
		}
	}
	if got := target.Redact("dial tcp 127.0.0.1:1: connection refused"); got != "dial tcp 127.0.0.1:1: connection refused" {
		t.Errorf("Redact took out what is no secret: %s", got)
	}
	if target, err = Parse("redis://" + canary + "@h"); err != nil { // a forgotten colon
		t.Fatal(err)
	}
	if got := target.Redact("no user " + canary); strings.Contains(got, canary) {
		t.Errorf("shown: %s", got)
	}
}

func FuzzErrorsShowNoPassword(f *testing.F) {
	f.Add("redis://u:", "@h:x")
	f.Add("redis://u:a/", "?b@h")
	f.Add("rediss+sentinel://h,", "/m?db=#")
	f.Fuzz(func(t *testing.T, before, after string) {
		const canary = "c4n4ry"
		if target, err := Parse(before + canary + after); err != nil && strings.Contains(err.Error(), canary) && !strings.Contains(before, "tls_") {
			t.Errorf("%v", err)
		} else if err == nil {
			_ = target.String()
		}
	})
}

// A real server with TLS, that wants a certificate of its clients.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir)
	ca.issue(t, "server")
	ca.issue(t, "client")
	file := func(name string) string { return filepath.Join(dir, name) }
	port := freePort(t)
	redistest.Start(t, redistest.WithArgs("--tls-port", port, "--tls-auth-clients", "yes",
		"--tls-ca-cert-file", file("ca.pem"), "--tls-cert-file", file("server.pem"), "--tls-key-file", file("server.key")))
	ping := func(raw string, set ...func(*Target) error) error {
		target, err := Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range set {
			if err := f(target); err != nil {
				t.Fatal(err)
			}
		}
		rdb := target.Client()
		defer rdb.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return rdb.Ping(ctx).Err()
	}
	whole := "?tls_ca=" + file("ca.pem") + "&tls_cert=" + file("client.pem") + "&tls_key=" + file("client.key")
	if err := ping("rediss://localhost:" + port + whole); err != nil {
		t.Errorf("with everything: %v", err)
	}
	if err := ping("rediss://127.0.0.1:" + port + whole + "&tls_server_name=localhost"); err != nil {
		t.Errorf("with the server's name given: %v", err)
	}
	if err := ping("rediss://127.0.0.1:" + port + whole); err == nil {
		t.Error("a certificate for another name was taken")
	}
	if err := ping("rediss://localhost:" + port); err == nil {
		t.Error("an unknown authority was taken")
	}
	if err := ping("rediss://localhost:" + port + "?tls_ca=" + file("ca.pem")); err == nil {
		t.Error("the server took a client without a certificate")
	}
	mine := "?tls_cert=" + file("client.pem") + "&tls_key=" + file("client.key")
	roots := func(target *Target) error { return target.SetRoots(file("ca.pem")) }
	if err := ping("rediss://localhost:"+port+mine, roots); err != nil {
		t.Errorf("with roots set: %v", err)
	}
	if err := ping("rediss://127.0.0.1:"+port+mine, (*Target).SetInsecure); err != nil {
		t.Errorf("unchecked: %v", err)
	}
}

// What belongs to TLS is refused for a URL without it, where it would do nothing.
func TestTLSOptionsWithoutTLSAreRefused(t *testing.T) {
	target, err := Parse("redis://localhost")
	if err != nil {
		t.Fatal(err)
	}
	if err := target.SetInsecure(); !errors.Is(err, ErrPlain) {
		t.Errorf("insecure: %v", err)
	}
	if err := target.SetRoots("ca.pem"); !errors.Is(err, ErrPlain) {
		t.Errorf("roots: %v", err)
	}
}

type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	a := &authority{dir: dir}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = a.sign(t, "ca", a.cert)
	return a
}

func (a *authority) issue(t *testing.T, name string) {
	t.Helper()
	a.sign(t, name, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

func (a *authority) sign(t *testing.T, name string, cert *x509.Certificate) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for ext, block := range map[string]*pem.Block{"pem": {Type: "CERTIFICATE", Bytes: der}, "key": {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(filepath.Join(a.dir, name+"."+ext), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
