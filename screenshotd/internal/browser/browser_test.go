package browser_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/jpeg"
	_ "image/png"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	_ "golang.org/x/image/webp"

	"github.com/ashfaqjani916/gotsem/screenshotd/internal/browser"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/guard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	red   = color.RGBA{R: 255, A: 255}
	green = color.RGBA{G: 128, A: 255}
	blue  = color.RGBA{B: 255, A: 255}
)

// pages serves what the tests capture.
func pages(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	page := func(path, html string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = fmt.Fprint(w, "<!doctype html><html><body style='margin:0'>"+html+"</body></html>")
		})
	}
	page("/red", "<style>html{background:red}</style>")
	page("/green", "<style>html{background:green}</style>")
	page("/tall", "<div style='height:3000px;background:red'></div><div style='height:500px;background:blue'></div>")
	page("/endless", "<div style='height:60000px;background:red'></div>")
	page("/popups", "<style>html{background:green}</style><script>for(let i=0;i<5;i++)window.open('/red?'+i)</script>")
	page("/dialogs", "<style>html{background:green}</style><script>alert(1);confirm(2);prompt(3);onbeforeunload=()=>'no'</script>")
	page("/busy", "<script>onload=()=>{for(;;);}</script>")
	page("/heavy", "<script>fetch('/megabytes').then(r=>r.text())</script><img src=/slow>")
	mux.HandleFunc("/megabytes", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte{'x'}, 3<<20))
	})
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/missing", http.NotFound)
	page("/hoard", "<script>const s='x'.repeat(1000);for(let i=0;i<1e6;i++){const p=document.createElement('p');p.title=s+i;p.textContent=s+i;document.body.appendChild(p)}</script>")
	mux.HandleFunc("/private", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprint(w, "<!doctype html><style>html{background:green}</style><iframe src=/private></iframe>")
	})
	mux.HandleFunc("/paper", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/pdf")
		_, _ = io.WriteString(w, "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[]/Count 0>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n")
	})
	mux.HandleFunc("/go", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.FormValue("to"), http.StatusFound)
	})
	mux.HandleFunc("/empty", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// allow lets the guard reach what listens at a test's URL.
func allow(t *testing.T, rawURL string) guard.Exception {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	e, err := guard.ParseException(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// start makes a browser that reaches the page server through a guard.
func start(t *testing.T, s *httptest.Server, change func(*browser.Options)) *browser.Browser {
	t.Helper()
	log := slog.New(slog.NewTextHandler(testLog{t}, nil))
	g := guard.New(guard.Options{Allow: []guard.Exception{allow(t, s.URL)}, Logger: log})
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	o := browser.Options{Guard: g, Logger: log}
	if change != nil {
		change(&o)
	}
	b, err := browser.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func job(t *testing.T, rawURL string) browser.Job {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return browser.Job{
		URL: u, Width: 320, Height: 240, Scale: 1, Format: browser.PNG,
		MaxHeight: 16384, MaxPixels: 40 << 20,
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func decode(t *testing.T, p *browser.Picture, format string) image.Image {
	t.Helper()
	img, got, err := image.Decode(bytes.NewReader(p.Data))
	if err != nil {
		t.Fatalf("not a picture: %v", err)
	}
	if got != format {
		t.Fatalf("the picture is a %s, want %s", got, format)
	}
	if b := img.Bounds(); b.Dx() != p.Width || b.Dy() != p.Height {
		t.Fatalf("the picture is %d×%d, said to be %d×%d", b.Dx(), b.Dy(), p.Width, p.Height)
	}
	return img
}

// looks fails unless the pixel has the colour, about.
func looks(t *testing.T, img image.Image, x, y int, want color.RGBA) {
	t.Helper()
	r, g, b, _ := img.At(x, y).RGBA()
	near := func(got uint32, want uint8) bool { d := int(got>>8) - int(want); return d > -24 && d < 24 } // lossy formats
	if !near(r, want.R) || !near(g, want.G) || !near(b, want.B) {
		t.Errorf("pixel %d,%d is (%d,%d,%d), want about %v", x, y, r>>8, g>>8, b>>8, want)
	}
}

// nothingLeft fails unless every tab and browser context is gone.
func nothingLeft(t *testing.T, b *browser.Browser) {
	t.Helper()
	tabs, contexts, err := b.Tabs(within(t, 5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if tabs != 0 || contexts != 0 {
		t.Errorf("%d tabs and %d browser contexts are left, want none", tabs, contexts)
	}
}

func TestPictures(t *testing.T) {
	s := pages(t)
	b := start(t, s, nil)
	if _, err := b.Capture(within(t, 30*time.Second), job(t, s.URL+"/red")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*browser.Job)
		format string
		w, h   int
		cut    bool
		pixels map[image.Point]color.RGBA
	}{
		{"png", nil, "png", 320, 240, false, map[image.Point]color.RGBA{{X: 1, Y: 1}: red, {X: 319, Y: 239}: red}},
		{"jpeg", func(j *browser.Job) { j.Format, j.Quality = browser.JPEG, 80 }, "jpeg", 320, 240, false, map[image.Point]color.RGBA{{X: 160, Y: 120}: red}},
		{"webp", func(j *browser.Job) { j.Format, j.Quality = browser.WebP, 80 }, "webp", 320, 240, false, map[image.Point]color.RGBA{{X: 160, Y: 120}: red}},
		{"scale 2", func(j *browser.Job) { j.Scale = 2 }, "png", 640, 480, false, map[image.Point]color.RGBA{{X: 639, Y: 479}: red}},
		{"full page", func(j *browser.Job) { j.URL.Path = "/tall"; j.FullPage = true }, "png", 320, 3500, false, map[image.Point]color.RGBA{{X: 9, Y: 2990}: red, {X: 9, Y: 3490}: blue}},
		{"page longer than the cap", func(j *browser.Job) { j.URL.Path = "/endless"; j.FullPage = true; j.MaxHeight = 4000 }, "png", 320, 4000, true, map[image.Point]color.RGBA{{X: 9, Y: 3999}: red}},
		{"more pixels than the cap", func(j *browser.Job) {
			j.URL.Path = "/endless"
			j.FullPage, j.Scale, j.MaxPixels = true, 2, 640*1000
		}, "png", 640, 1000, true, nil},
		{"dialogs", func(j *browser.Job) { j.URL.Path = "/dialogs" }, "png", 320, 240, false, map[image.Point]color.RGBA{{X: 9, Y: 9}: green}},
		{"redirect", func(j *browser.Job) { j.URL.Path, j.URL.RawQuery = "/go", "to=/green" }, "png", 320, 240, false, map[image.Point]color.RGBA{{X: 9, Y: 9}: green}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := job(t, s.URL+"/red")
			if c.change != nil {
				c.change(&j)
			}
			p, err := b.Capture(within(t, 20*time.Second), j)
			if err != nil {
				t.Fatal(err)
			}
			if p.Width != c.w || p.Height != c.h || p.Cut != c.cut || p.Status != 200 {
				t.Errorf("got %d×%d, cut %v, status %d; want %d×%d, cut %v, status 200", p.Width, p.Height, p.Cut, p.Status, c.w, c.h, c.cut)
			}
			img := decode(t, p, c.format)
			for at, want := range c.pixels {
				looks(t, img, at.X, at.Y, want)
			}
		})
	}
	nothingLeft(t, b)
}

func TestTheTargetsStatusIsTold(t *testing.T) {
	s := pages(t)
	b := start(t, s, nil)
	p, err := b.Capture(within(t, 20*time.Second), job(t, s.URL+"/missing"))
	if err != nil || p.Status != http.StatusNotFound {
		t.Errorf("got %+v, %v; want a picture of a 404", p, err)
	}
	// One that wants a password shows what it shows to those who give none, frames too.
	p, err = b.Capture(within(t, 20*time.Second), job(t, s.URL+"/private"))
	if err != nil || p.Status != http.StatusUnauthorized {
		t.Fatalf("got %+v, %v; want a picture of a 401", p, err)
	}
	looks(t, decode(t, p, "png"), 310, 230, green)
}

func TestWhatCannotBeCaptured(t *testing.T) {
	s := pages(t)
	b := start(t, s, func(o *browser.Options) { o.MaxPage = 1 << 20 })
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, c := range []struct {
		name, url string
		wait      time.Duration
		want      error
	}{
		{"a page that never loads", s.URL + "/slow", time.Second, context.DeadlineExceeded},
		{"a page that hangs when loaded", s.URL + "/busy", 2 * time.Second, context.DeadlineExceeded},
		{"no content", s.URL + "/empty", 20 * time.Second, browser.ErrLoad},
		{"a page of more bytes than the cap", s.URL + "/heavy", 20 * time.Second, browser.ErrTooLarge},
		{"a closed port that is not allowed", gone.URL, 20 * time.Second, guard.ErrBlocked},
		{"redirect to what is not allowed", s.URL + "/go?to=" + url.QueryEscape(gone.URL), 20 * time.Second, guard.ErrBlocked},
		{"redirect to https of what is not allowed", s.URL + "/go?to=" + url.QueryEscape("https://127.0.0.1:443/"), 20 * time.Second, guard.ErrBlocked},
		{"a host that is not", "http://no-such-host.invalid/", 20 * time.Second, browser.ErrLoad},
		{"a PDF", s.URL + "/paper", 20 * time.Second, browser.ErrLoad},
		{"a file", "file:///etc/passwd", 20 * time.Second, guard.ErrBlocked},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := b.Capture(within(t, c.wait), job(t, c.url))
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, %v; want %v", p != nil, err, c.want)
			}
			t.Log(err)
			nothingLeft(t, b)
		})
	}
}

// A page that takes too much memory loses its own renderer, and nobody else's capture
// notices.
func TestAPageWithTooMuchMemoryEndsAlone(t *testing.T) {
	s := pages(t)
	b := start(t, s, func(o *browser.Options) { o.MaxMemory = 150 << 20 })
	if _, err := b.Capture(within(t, 30*time.Second), job(t, s.URL+"/red")); err != nil {
		t.Fatal(err)
	}
	before := b.Pid()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	neighbour := make(chan error, 1)
	go func() {
		_, err := b.Capture(ctx, job(t, s.URL+"/slow"))
		neighbour <- err
	}()
	for range 2 {
		_, err := b.Capture(within(t, 60*time.Second), job(t, s.URL+"/hoard"))
		if !errors.Is(err, browser.ErrTooLarge) || !strings.Contains(err.Error(), "150 MB of memory") {
			t.Errorf("the page: %v, want %v", err, browser.ErrTooLarge)
		}
	}
	select {
	case err := <-neighbour:
		t.Errorf("the neighbour's capture ended: %v", err)
	default:
	}
	cancel()
	<-neighbour
	if _, err := b.Capture(within(t, 20*time.Second), job(t, s.URL+"/red")); err != nil || b.Pid() != before {
		t.Errorf("afterwards: %v, browser %d, was %d", err, b.Pid(), before)
	}
	nothingLeft(t, b)
}

// What a browser writes is removed when it ends, and that of a service that was killed
// by the next one.
func TestNoProfileIsLeft(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	s := pages(t)
	left := func() (names []string) {
		entries, err := os.ReadDir(tmp)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	b := start(t, s, nil)
	if _, err := b.Capture(within(t, 30*time.Second), job(t, s.URL+"/red")); err != nil {
		t.Fatal(err)
	}
	during := left()
	if len(during) != 1 {
		t.Fatalf("a browser keeps %q, want one directory", during)
	}
	// One that nobody has locked is what a service leaves that was killed.
	stale := tmp + "/screenshotd-profile-stale"
	if err := os.Mkdir(stale, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stale+"/in-use", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, s, nil)
	if got := left(); len(got) != 1 || got[0] != during[0] {
		t.Errorf("after a start there are %q, want %q, which is in use", got, during)
	}
	if err := syscall.Kill(-b.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if got := left(); len(got) != 0 {
		t.Errorf("after the end %q is left", got)
	}
}

func TestCrashedRendererIsAnAnswer(t *testing.T) {
	s := pages(t)
	b := start(t, s, nil)
	if _, err := b.Capture(within(t, 30*time.Second), job(t, s.URL+"/red")); err != nil {
		t.Fatal(err)
	}
	crashed := 0
	for range 8 { // the renderer is killed at whatever stage it is found
		// That of the hanging page is the one that was not there before.
		before := renderers(t, b.Pid())
		done := make(chan error, 1)
		go func() {
			_, err := b.Capture(within(t, 30*time.Second), job(t, s.URL+"/slow"))
			done <- err
		}()
		var killed bool
		for deadline := time.Now().Add(10 * time.Second); !killed && time.Now().Before(deadline); {
			for pid := range renderers(t, b.Pid()) {
				if !before[pid] {
					time.Sleep(rand.N(100 * time.Millisecond))
					killed = syscall.Kill(pid, syscall.SIGKILL) == nil || killed
				}
			}
		}
		if !killed {
			t.Fatal("found no renderer to kill")
		}
		select {
		case err := <-done:
			// Chromium may answer the navigation, as aborted, before it tells of the crash.
			if errors.Is(err, browser.ErrCrashed) {
				crashed++
			} else if !errors.Is(err, browser.ErrLoad) {
				t.Errorf("got %v, want %v", err, browser.ErrCrashed)
			}
		case <-time.After(15 * time.Second):
			t.Fatal("the capture hangs after its renderer was killed")
		}
		nothingLeft(t, b)
	}
	if crashed == 0 {
		t.Errorf("none of the captures said %v", browser.ErrCrashed)
	}
	if _, err := b.Capture(within(t, 10*time.Second), job(t, s.URL+"/red")); err != nil {
		t.Errorf("the next capture: %v", err)
	}
}

func TestKilledBrowserIsReplaced(t *testing.T) {
	s := pages(t)
	b := start(t, s, nil)
	if _, err := b.Capture(within(t, 30*time.Second), job(t, s.URL+"/red")); err != nil {
		t.Fatal(err)
	}
	pid := b.Pid()
	done := make(chan error, 3)
	for range cap(done) {
		go func() {
			_, err := b.Capture(within(t, 60*time.Second), job(t, s.URL+"/slow"))
			done <- err
		}()
	}
	waitTabs(t, b, 3)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	for range cap(done) {
		if err := <-done; !errors.Is(err, browser.ErrGone) {
			t.Errorf("a capture under way got %v, want %v", err, browser.ErrGone)
		}
	}
	noticed := time.Since(killed)
	p, err := b.Capture(within(t, 30*time.Second), job(t, s.URL+"/red"))
	if err != nil {
		t.Fatal(err)
	}
	again := time.Since(killed)
	looks(t, decode(t, p, "png"), 9, 9, red)
	t.Logf("noticed after %v, next capture after %v", noticed, again)
	if noticed > 15*time.Second || again > 25*time.Second {
		t.Errorf("noticed after %v and captured after %v, want 3 s and 5 s", noticed, again)
	}
	if n := b.Ended()["crashed"]; n != 1 {
		t.Errorf("%d browsers crashed, want 1", n)
	}
	if b.Pid() == pid {
		t.Error("the browser still has the pid of the killed one")
	}
	nothingLeft(t, b)
	await(t, "the old browser's processes to be gone", func() bool { return len(group(t, pid)) == 0 })
}

func TestCutShort(t *testing.T) {
	s := pages(t)
	b := start(t, s, nil)
	if _, err := b.Capture(within(t, 30*time.Second), job(t, s.URL+"/red")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 6)
	for i := range 40 {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Millisecond)
			defer cancel()
			if _, err := b.Capture(ctx, job(t, s.URL+"/slow")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("cut short after %d ms: %v", i+1, err)
			}
		})
	}
	wg.Wait()
	nothingLeft(t, b)
	if ended := b.Ended(); ended["crashed"]+ended["stuck"] != 0 {
		t.Errorf("browsers ended: %v, want none", ended)
	}
}

func TestPopupsAreNoTabs(t *testing.T) {
	s := pages(t)
	b := start(t, s, nil)
	if _, err := b.Capture(within(t, 30*time.Second), job(t, s.URL+"/red")); err != nil {
		t.Fatal(err)
	}
	most, stop := watchTabs(t, b)
	for range 3 {
		p, err := b.Capture(within(t, 20*time.Second), job(t, s.URL+"/popups"))
		if err != nil {
			t.Fatal(err)
		}
		looks(t, decode(t, p, "png"), 9, 9, green)
	}
	stop()
	if n := most.Load(); n > 1 {
		t.Errorf("%d tabs at once, want 1", n)
	}
	nothingLeft(t, b)
}

func TestRestartAfterSoManyCaptures(t *testing.T) {
	s := pages(t)
	b := start(t, s, func(o *browser.Options) { o.RestartAfter = 5 })
	var wg sync.WaitGroup
	slots := make(chan struct{}, 3)
	for range 12 {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // arrivals, not waiting
			if _, err := b.Capture(within(t, 30*time.Second), job(t, s.URL+"/red")); err != nil {
				t.Errorf("a capture across a restart: %v", err)
			}
		})
	}
	wg.Wait()
	await(t, "two browsers to be retired", func() bool { return b.Ended()["retired"] >= 2 })
	nothingLeft(t, b)
}

// A busy browser must not slow the service down.
func TestTheBrowserYields(t *testing.T) {
	s := pages(t)
	b := start(t, s, nil)
	if _, err := b.Capture(within(t, 30*time.Second), job(t, s.URL+"/red")); err != nil {
		t.Fatal(err)
	}
	own, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	// As root Chromium raises some threads of its other processes again.
	if got, err := syscall.Getpriority(syscall.PRIO_PROCESS, b.Pid()); err != nil || got != own-browser.DefaultNice {
		t.Errorf("the browser has priority %d, this process %d: want %d less (%v)", got, own, browser.DefaultNice, err)
	}
}

func TestNotInstalled(t *testing.T) {
	_, err := browser.New(browser.Options{Path: "/nowhere/chromium"})
	if err == nil || !strings.Contains(err.Error(), "apt-get install chromium-headless-shell") {
		t.Errorf("got %v, want an error that says what to install", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err = browser.Find(""); err == nil || !strings.Contains(err.Error(), "apt-get install chromium-headless-shell") {
		t.Errorf("got %v, want an error that says what to install", err)
	}
}

func TestAStartThatFails(t *testing.T) {
	s := pages(t)
	var starts atomic.Int64
	b := start(t, s, func(o *browser.Options) {
		o.Path = "false"
		o.Wrap = func(*exec.Cmd) { starts.Add(1) }
	})
	for range 3 {
		if _, err := b.Capture(within(t, 20*time.Second), job(t, s.URL+"/red")); !errors.Is(err, browser.ErrStart) {
			t.Fatalf("got %v, want %v", err, browser.ErrStart)
		}
	}
	if n := starts.Load(); n > 2 {
		t.Errorf("it was started %d times for three captures at once, want the failure to be remembered for a second", n)
	}
	if err := b.Failing(); !errors.Is(err, browser.ErrStart) {
		t.Errorf("Failing: %v", err)
	}
}

func TestCloseUnderCaptures(t *testing.T) {
	s := pages(t)
	b := start(t, s, nil)
	done := make(chan error, 2)
	for range cap(done) {
		go func() {
			_, err := b.Capture(within(t, 60*time.Second), job(t, s.URL+"/slow"))
			done <- err
		}()
	}
	waitTabs(t, b, 2)
	pid := b.Pid()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for range cap(done) {
		if err := <-done; !errors.Is(err, browser.ErrClosed) {
			t.Errorf("got %v, want %v", err, browser.ErrClosed)
		}
	}
	if left := group(t, pid); len(left) != 0 {
		t.Errorf("processes %v of the browser are left", left)
	}
	if _, err := b.Capture(within(t, 5*time.Second), job(t, s.URL+"/red")); !errors.Is(err, browser.ErrClosed) {
		t.Errorf("after Close: got %v, want %v", err, browser.ErrClosed)
	}
}

// await polls for what a browser does in its own time.
func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func waitTabs(t *testing.T, b *browser.Browser, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d tabs", n), func() bool {
		tabs, _, err := b.Tabs(t.Context())
		return err == nil && tabs == n
	})
}

// watchTabs keeps the most tabs that the browser ever tells of, until stopped.
func watchTabs(t *testing.T, b *browser.Browser) (most *atomic.Int64, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	most = new(atomic.Int64)
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if tabs, _, err := b.Tabs(ctx); err == nil {
				most.Store(max(most.Load(), int64(tabs)))
			}
		}
	})
	return most, func() { cancel(); wg.Wait() }
}

// group lists the living processes of a process group.
func group(t *testing.T, pgid int) (pids []int) {
	t.Helper()
	for pid, f := range processes(t) {
		if f.group == pgid && f.state != 'Z' {
			pids = append(pids, pid)
		}
	}
	return pids
}

// renderers are the renderer processes of the browser.
func renderers(t *testing.T, pgid int) map[int]bool {
	t.Helper()
	m := map[int]bool{}
	for _, pid := range group(t, pgid) {
		cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.Contains(cmd, []byte("--type=renderer")) {
			m[pid] = true
		}
	}
	return m
}

type proc struct {
	state byte
	group int
}

func processes(t *testing.T) map[int]proc {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	m := map[int]proc{}
	for _, e := range entries {
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		_, rest, ok := bytes.Cut(stat, []byte(") "))
		var pid, parent int
		var p proc
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil || !ok {
			continue
		}
		if _, err := fmt.Sscanf(string(rest), "%c %d %d", &p.state, &parent, &p.group); err == nil {
			m[pid] = p
		}
	}
	return m
}
