package browser_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/ashfaqjani916/gotsem/screenshotd/internal/browser"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/guard"
)

// trap listens where nobody may come: on TCP and UDP, at 127.0.0.1 and ::1.
type trap struct {
	port int
	hits atomic.Int64
	mu   sync.Mutex
	seen map[string]bool // what came
}

func setTrap(t *testing.T, port int) *trap {
	t.Helper()
	tr := &trap{port: port, seen: map[string]bool{}}
	note := func(what string) {
		tr.hits.Add(1)
		tr.mu.Lock()
		tr.seen[what] = true
		tr.mu.Unlock()
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		at := net.JoinHostPort(host, fmt.Sprint(port))
		l, err := net.Listen("tcp", at)
		if err != nil {
			if host == "::1" {
				t.Logf("no IPv6 here: %v", err)
				continue
			}
			t.Fatal(err)
		}
		u, err := net.ListenPacket("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		t.Cleanup(func() { _ = l.Close(); _ = u.Close(); wg.Wait() })
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.SetDeadline(time.Now().Add(time.Second))
				buf := make([]byte, 200)
				n, _ := c.Read(buf)
				line, _, _ := strings.Cut(string(buf[:n]), "\r\n")
				if strings.HasPrefix(line, "\x16") {
					line = "TLS"
				}
				note("tcp " + line)
				_ = c.Close()
			}
		})
		wg.Go(func() {
			buf := make([]byte, 2000)
			for {
				n, _, err := u.ReadFrom(buf)
				if err != nil {
					return
				}
				if n >= 20 && buf[0] == 0 && buf[1] == 1 {
					note("udp STUN")
				} else {
					note("udp")
				}
			}
		})
	}
	return tr
}

func (tr *trap) saw() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var s []string
	for what := range tr.seen {
		s = append(s, what)
	}
	return s
}

func (tr *trap) has(what string) bool {
	for _, s := range tr.saw() {
		if strings.Contains(s, what) {
			return true
		}
	}
	return false
}

// spellings are hosts that mean the trap, or would, were they asked for.
var spellings = []string{
	"127.0.0.1", "localhost", "localhost.", "any.localhost", "127.1", "0x7f.1", "0x7f000001", "2130706433",
	"0177.0.0.1", "017700000001", "0", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
	"[0:0:0:0:0:ffff:7f00:0001]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "①②⑦.⓪.⓪.①",
	"private.test",
}

// names answers the DNS of the tests: private.test is 127.0.0.1; a name that begins
// with rebind is the page server's address when first asked for, and 127.0.0.1
// from then on.
type names struct {
	mu    sync.Mutex
	asked map[string]int
}

func (n *names) ask(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.asked == nil {
		n.asked = map[string]int{}
	}
	n.asked[name]++
	return n.asked[name]
}

func (n *names) resolver(t *testing.T) *net.Resolver {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = pc.Close(); wg.Wait() })
	wg.Go(func() {
		buf := make([]byte, 1500)
		for {
			k, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer, err := n.answer(buf[:k]); err == nil {
				_, _ = pc.WriteTo(answer, from)
			}
		}
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
}

func (n *names) answer(query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	q := m.Questions[0]
	m.Response, m.Additionals = true, nil
	if q.Type == dnsmessage.TypeA {
		var a [4]byte
		switch name := strings.TrimSuffix(q.Name.String(), "."); {
		case name == "private.test":
			a = [4]byte{127, 0, 0, 1}
		case strings.HasPrefix(name, "rebind"):
			a = [4]byte{127, 0, 0, 1}
			if n.ask(name) == 1 {
				a = [4]byte{127, 0, 0, 2}
			}
		default:
			m.RCode = dnsmessage.RCodeNameError
		}
		if m.RCode == dnsmessage.RCodeSuccess {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 0},
				Body:   &dnsmessage.AResource{A: a},
			}}
		}
	}
	return m.Pack()
}

// attacker serves pages at 127.0.0.2 that try to reach the trap, which listens on
// the same port of 127.0.0.1.
func attacker(t *testing.T, file string) (*httptest.Server, int) {
	t.Helper()
	var s *httptest.Server
	mux := http.NewServeMux()
	s = httptest.NewUnstartedServer(mux)
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	port := l.Addr().(*net.TCPAddr).Port

	html := func(path, body string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = fmt.Fprint(w, "<!doctype html><style>html{background:green}</style><body>", body)
		})
	}
	hold := "<img src=/hold>" // the page is not loaded before its tries were made
	mux.HandleFunc("/hold", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(700 * time.Millisecond):
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.FormValue("u"), http.StatusFound)
	})
	html("/plain", "")

	var many strings.Builder
	for i, h := range spellings {
		at := fmt.Sprintf("http://%s:%d/", h, port)
		fmt.Fprintf(&many, `<img src="%simg%d"><iframe src="%siframe%d"></iframe><img src="/to?u=%s">`, at, i, at, i, url.QueryEscape(at+"redirected"))
	}
	html("/spellings", many.String()+hold)

	at := fmt.Sprintf("127.0.0.1:%d/", port)
	html("/ways", strings.NewReplacer("AT", at, "PORT", fmt.Sprint(port), "FILE", file).Replace(`
<link rel=stylesheet href="http://ATcss"><link rel=prefetch href="http://ATprefetch"><link rel=preconnect href="http://AT">
<link rel=icon href="http://ATicon"><link rel=manifest href="http://ATmanifest"><link rel=preload as=fetch href="http://ATpreload">
<style>@import "http://ATimport"; @font-face{font-family:f;src:url(http://ATfont)} p{font-family:f;background:url(http://ATbackground)}</style>
<p>text</p><script src="http://ATscript"></script><script type=module src="http://ATmodule"></script>
<img src="https://AThttps"><img srcset="http://ATsrcset 1x"><picture><source srcset="http://ATsource"><img></picture>
<video src="http://ATvideo" poster="http://ATposter"></video><audio src="http://ATaudio" autoplay></audio>
<object data="http://ATobject"></object><embed src="http://ATembed"><svg><image href="http://ATsvg" /></svg>
<iframe srcdoc="<img src='http://ATsrcdoc'>"></iframe><iframe src="data:text/html,<img src='http://ATdata'>"></iframe>
<form id=f method=post action="http://ATform" target=x></form><iframe name=x></iframe>
<script>
const t = f => { try { const p = f(); p && p.catch && p.catch(() => {}) } catch (e) {} }
t(() => fetch('http://ATfetch', {mode: 'no-cors'}))
t(() => fetch('http://ATpost', {method: 'POST', mode: 'no-cors', body: 'SET x 1\r\n'}))
t(() => { const x = new XMLHttpRequest(); x.open('GET', 'http://ATxhr'); x.send() })
t(() => navigator.sendBeacon('http://ATbeacon', 'x'))
t(() => new EventSource('http://ATevents'))
t(() => new WebSocket('ws://ATwebsocket'))
t(() => new WebSocket('wss://ATwebsocket'))
t(() => { const w = new WebTransport('https://AT'); w.ready.catch(() => {}); w.closed.catch(() => {}) })
t(() => new Worker(URL.createObjectURL(new Blob(["fetch('http://ATworker',{mode:'no-cors'});new WebSocket('ws://ATworker')"]))))
t(() => new SharedWorker(URL.createObjectURL(new Blob(["fetch('http://ATshared',{mode:'no-cors'})"]))))
t(() => document.getElementById('f').submit())
t(() => window.open('http://ATpopup'))
t(() => { const i = new Image(); i.src = 'http://ATimage' })
for (const a of ['stun:127.0.0.1:PORT', 'stun:localhost:PORT', 'stun:[::1]:PORT']) t(() => {
	const c = new RTCPeerConnection({iceServers: [{urls: a}]})
	c.createDataChannel('x'); c.createOffer().then(o => c.setLocalDescription(o)) })
for (const a of ['turn:127.0.0.1:PORT?transport=tcp', 'turn:127.0.0.1:PORT?transport=udp', 'turns:127.0.0.1:PORT']) t(() => {
	const c = new RTCPeerConnection({iceServers: [{urls: a, username: 'u', credential: 'c'}]})
	c.createDataChannel('x'); c.createOffer().then(o => c.setLocalDescription(o)) })
t(() => { // a candidate that was not gathered but made up
	const c = new RTCPeerConnection(), d = new RTCPeerConnection()
	c.createDataChannel('x')
	return c.createOffer().then(o => c.setLocalDescription(o)).then(() => d.setRemoteDescription(c.localDescription))
		.then(() => d.createAnswer()).then(a => d.setLocalDescription(a)).then(() => c.setRemoteDescription(d.localDescription))
		.then(() => c.addIceCandidate({candidate: 'candidate:1 1 udp 2122260223 127.0.0.1 PORT typ host', sdpMid: '0', sdpMLineIndex: 0})) })
</script>`)+hold)
	html("/files", strings.ReplaceAll(`
<style>*{margin:0;border:0}iframe,object,embed,img{position:fixed;inset:0;width:100vw;height:100vh}</style>
<iframe src="FILE"></iframe><object data="FILE"></object><embed src="FILE"><iframe src="/to?u=FILE"></iframe>
<script>try{open('FILE','_self')}catch(e){}try{location='FILE'}catch(e){}</script>`, "FILE", file)+hold)
	return s, port
}

// The browser behind the guard reaches nothing that the guard would not. The
// control, without it, must be caught, or the traps prove nothing.
func TestNothingReachesTheTraps(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret.html")
	if err := os.WriteFile(file, []byte("<body style='background:red'>"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, port := attacker(t, "file://"+file)
	tr := setTrap(t, port)
	dns := new(names)
	g := guard.New(guard.Options{
		Allow:    []guard.Exception{allow(t, s.URL)},
		Ports:    []uint16{80, 443, uint16(port)}, // so that it is the address that is refused
		Resolver: dns.resolver(t),
	})
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	guarded, err := browser.New(browser.Options{Guard: g})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = guarded.Close() }()

	for _, path := range []string{"/spellings", "/ways", "/files"} {
		p, err := guarded.Capture(within(t, 30*time.Second), job(t, s.URL+path))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if path == "/files" { // nothing red on it
			looks(t, decode(t, p, "png"), 160, 120, green)
		}
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for _, h := range spellings {
		at := fmt.Sprintf("http://%s:%d/top", h, port)
		for _, u := range []string{at, s.URL + "/to?u=" + url.QueryEscape(at)} {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				_, err := guarded.Capture(within(t, 20*time.Second), job(t, u))
				if !errors.Is(err, guard.ErrBlocked) && !errors.Is(err, browser.ErrLoad) {
					t.Errorf("%s: got %v, want that it is blocked", u, err)
				}
			})
		}
	}
	wg.Wait()
	if n := tr.hits.Load(); n != 0 {
		t.Errorf("the traps were reached %d times: %v", n, tr.saw())
	}
	if g.Blocked() == 0 {
		t.Error("the guard blocked nothing: the tries were not made")
	}

	control, err := browser.New(browser.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = control.Close() }()
	for _, path := range []string{"/spellings", "/ways"} {
		if _, err := control.Capture(within(t, 30*time.Second), job(t, s.URL+path)); err != nil {
			t.Errorf("control %s: %v", path, err)
		}
	}
	for _, what := range []string{"img0", "iframe0", "redirected", "css", "fetch", "xhr", "beacon", "events", "websocket", "form", "script", "TLS", "udp STUN"} {
		if !tr.has(what) {
			t.Errorf("the control run did not reach the trap by %q: the test proves nothing of it", what)
		}
	}
	t.Logf("the control run reached the traps %d times: %q", tr.hits.Load(), tr.saw())
}

// A name that answers a public address to the check and a private one to the dial
// is refused at the dial.
func TestRebindingIsRefusedAtTheDial(t *testing.T) {
	_, port := attacker(t, "file:///none")
	tr := setTrap(t, port)
	dns := new(names)
	g := guard.New(guard.Options{
		Allow:    []guard.Exception{{Prefix: netip.MustParsePrefix("127.0.0.2/32")}},
		Ports:    []uint16{uint16(port)},
		Resolver: dns.resolver(t),
	})
	u, err := url.Parse(fmt.Sprintf("http://rebind.test:%d/plain", port))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	b, err := browser.New(browser.Options{Guard: g})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	_, err = b.Capture(within(t, 20*time.Second), browser.Job{
		URL: u, Width: 100, Height: 100, Scale: 1, Format: browser.PNG, MaxHeight: 100, MaxPixels: 10000,
	})
	if !errors.Is(err, guard.ErrBlocked) {
		t.Errorf("got %v, want blocked", err)
	}
	if n := dns.ask("rebind.test") - 1; n < 2 {
		t.Errorf("the name was resolved %d times, want by the check and by the dial", n)
	}
	if tr.hits.Load() != 0 {
		t.Errorf("the trap was reached: %v", tr.saw())
	}
}
