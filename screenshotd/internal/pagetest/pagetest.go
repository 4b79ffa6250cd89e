// Package pagetest opens pages in a real Chromium, for tests: with a size, a colour scheme
// and a keyboard. What a page logs as an error, what its Content-Security-Policy stops, and
// what axe-core finds against its accessibility fails the test.
//
// It lives in this module since chromedp and a browser to find are here already.
//
// axe-core is in testdata, with its licences (MPL-2.0), at the version that its first line
// names: so the tests need neither Node nor a network, and find the same today as in a
// year. It is 650 kB of text, which only modules that are tested download; npm as a need
// of `make test` would be more.
package pagetest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "embed"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/memory"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/ashfaqjani916/gotsem/screenshotd/internal/browser"
)

// shots is where Picture writes. An editor's eye decides what a test cannot.
var shots = flag.String("shots", "", "folder into which tests write pictures of the pages; empty: none")

//go:embed testdata/axe-core/axe.min.js
var axe string

// patience is how long something may take on a busy machine.
const patience = 30 * time.Second

// Browser is a Chromium with a profile of its own.
type Browser struct {
	t    testing.TB
	root context.Context
}

// Start starts a Chromium that ends with the test. That there is none fails it.
func Start(t testing.TB) *Browser {
	t.Helper()
	path, err := browser.Find("")
	if err != nil {
		t.Fatal(err)
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.CombinedOutput(io.Discard), chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("no-sandbox", os.Geteuid() == 0), chromedp.Flag("no-proxy-server", true),
		chromedp.Flag("lang", "en-GB"),
		// Names for a page's foreign hosts; and no other is ever looked up.
		chromedp.Flag("host-resolver-rules", "MAP *.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"),
	)...)
	root, end := chromedp.NewContext(alloc, chromedp.WithErrorf(func(string, ...any) {}))
	t.Cleanup(func() { end(); stop() })
	if err := chromedp.Do(root); err != nil {
		t.Fatalf("the browser does not start: %v", err)
	}
	return &Browser{t, root}
}

// View is how a page is looked at.
type View struct {
	Width, Height int // CSS pixels; 0: 1200 × 900
	Dark          bool
	Calm          bool // prefers-reduced-motion
}

func (v View) String() string {
	scheme := "light"
	if v.Dark {
		scheme = "dark"
	}
	return fmt.Sprintf("%s-%d", scheme, v.Width)
}

// Views are those in which each screen is checked.
func Views() []View {
	return []View{{Width: 320, Height: 800}, {Width: 320, Height: 800, Dark: true}, {Width: 1200, Height: 900}, {Width: 1200, Height: 900, Dark: true}}
}

// Page is a tab with a page in it.
type Page struct {
	t   testing.TB
	ctx context.Context

	mu     sync.Mutex
	errors []string
}

// witness collects what the policy stops. It runs before the page's own scripts.
const witness = `window.pagetestViolations = [];
document.addEventListener("securitypolicyviolation", (e) => window.pagetestViolations.push(e.violatedDirective + " " + e.blockedURI + " " + e.sample));`

// Open opens a page in a browser context of its own.
func (b *Browser) Open(t testing.TB, url string, v View) *Page {
	t.Helper()
	p := &Page{t: t}
	ctx, end := chromedp.NewContext(b.root, chromedp.WithNewBrowserContext(), chromedp.WithListener(p.hear))
	p.ctx = ctx
	t.Cleanup(end)
	p.must("open a tab", chromedp.Do(ctx))
	call(p, log.Enable, cdp.Empty{})
	call(p, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: witness})
	p.Look(v)
	p.must("open "+url, chromedp.Do(ctx, chromedp.Navigate(url)))
	return p
}

// hear keeps the errors of the console: what scripts throw, and what the browser says of
// requests and policies.
func (p *Page) hear(ev any) {
	var text string
	switch ev := ev.(type) {
	case *log.EventEntryAdded:
		if ev.Entry.Level == log.EntryLevelError || ev.Entry.Level == log.EntryLevelWarning {
			text = ev.Entry.Text + " " + ev.Entry.URL
		}
	case *runtime.EventExceptionThrown:
		text = fmt.Sprintf("%s %+v", ev.ExceptionDetails.Text, ev.ExceptionDetails.Exception)
	case *runtime.EventConsoleAPICalled:
		if slices.Contains([]string{"error", "warning", "assert"}, string(ev.Type)) {
			text = "console: "
			for _, a := range ev.Args {
				text += string(a.Value) + a.Description + " "
			}
		}
	}
	if text != "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.errors = append(p.errors, text)
	}
}

func (p *Page) must(what string, err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

func call[P, R any](p *Page, c cdp.Command[P, R], params P) R {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	r, err := chromedp.Call(ctx, c, params)
	p.must(c.Method, err)
	return r
}

// Look changes how the page is looked at.
func (p *Page) Look(v View) {
	p.t.Helper()
	if v.Width == 0 {
		v.Width, v.Height = 1200, 900
	}
	call(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: int64(v.Width), Height: int64(v.Height), DeviceScaleFactor: 1})
	scheme, motion := "light", "no-preference"
	if v.Dark {
		scheme = "dark"
	}
	if v.Calm {
		motion = "reduce"
	}
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: motion},
	}})
}

// Eval is the value of an expression; of a promise, what it comes to.
func Eval[T any](p *Page, expression string) T {
	p.t.Helper()
	v, err := eval[T](p, expression)
	p.must(expression[:min(len(expression), 200)], err)
	return v
}

func eval[T any](p *Page, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// Text is what an element says.
func (p *Page) Text(selector string) string {
	p.t.Helper()
	return Eval[string](p, `document.querySelector(`+quote(selector)+`)?.textContent ?? "(there is no `+strings.ReplaceAll(selector, `"`, "'")+`)"`)
}

func quote(s string) string {
	q, _ := json.Marshal(s)
	return string(q)
}

// Await waits until an expression is true. A page that is just being left has no answer.
func (p *Page) Await(what, expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		yes, err := eval[bool](p, "!!("+expression+")")
		if yes {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("waited %v for %s (%v); the page says:\n%s", patience, what, err, Eval[string](p, "document.body.innerText"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// AwaitText waits until an element says something, in whole or in part.
func (p *Page) AwaitText(selector, part string) {
	p.t.Helper()
	p.Await(selector+" to say "+part, `(document.querySelector(`+quote(selector)+`)?.textContent ?? "").includes(`+quote(part)+`)`)
}

// Press presses keys, one after the other: characters, or those of package kb.
func (p *Page) Press(keys ...string) {
	p.t.Helper()
	for _, k := range keys {
		p.must("press "+k, chromedp.Do(p.ctx, chromedp.KeyEvent(k)))
	}
}

// TabTo presses Tab until the focus is on an element, as somebody without a mouse does. It
// fails if the element cannot be reached, or if it does not show that it has the focus.
func (p *Page) TabTo(selector string) {
	p.t.Helper()
	const most = 200
	for range most {
		if Eval[bool](p, `document.activeElement?.matches(`+quote(selector)+`) ?? false`) {
			if style := Eval[string](p, `getComputedStyle(document.activeElement).outlineStyle`); style == "none" {
				p.t.Errorf("%s has the focus, and does not show it", selector)
			}
			return
		}
		p.Press(kb.Tab)
	}
	p.t.Fatalf("%d times Tab do not lead to %s", most, selector)
}

// Later lets the page's own clock go on by d, as fast as the page can: timers fire in their
// order, and what they ask for is answered meanwhile.
func (p *Page) Later(d time.Duration) {
	p.t.Helper()
	over := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(p.ctx)
	defer stop()
	p.must("listen", chromedp.Listen(ctx, func(ev any) {
		if _, ok := ev.(*emulation.EventVirtualTimeBudgetExpired); ok {
			over <- struct{}{}
		}
	}))
	budget := float64(d.Milliseconds())
	call(p, emulation.SetVirtualTimePolicy, emulation.SetVirtualTimePolicyParams{
		Policy: emulation.VirtualTimePolicyPauseIfNetworkFetchesPending, Budget: &budget, MaxVirtualTimeTaskStarvationCount: 1000,
	})
	select {
	case <-over:
	case <-time.After(4 * patience):
		p.t.Fatalf("%v of the page's time are not over after %v", d, 4*patience)
	}
}

// Size is what a tab takes when its garbage is gone.
type Size struct{ Nodes, Listeners, Heap int64 }

// Size measures.
func (p *Page) Size() Size {
	p.t.Helper()
	call(p, heapprofiler.CollectGarbage, cdp.Empty{})
	dom := call(p, memory.GetDOMCounters, cdp.Empty{})
	heap := call(p, runtime.GetHeapUsage, cdp.Empty{})
	return Size{dom.Nodes, dom.JsEventListeners, int64(heap.UsedSize)}
}

// Quiet fails the test if the page logged an error, but for those that contain one of
// expected, or if its policy stopped something.
func (p *Page) Quiet(expected ...string) {
	p.t.Helper()
	if stopped := Eval[[]string](p, "window.pagetestViolations"); len(stopped) > 0 {
		p.t.Errorf("the page's policy stopped %q", stopped)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
next:
	for _, e := range p.errors {
		for _, part := range expected {
			if strings.Contains(e, part) {
				continue next
			}
		}
		p.t.Errorf("the page's console says: %s", e)
	}
}

// finding is what axe-core has against a page.
type finding struct {
	ID, Help string
	Nodes    []struct {
		HTML           string
		FailureSummary string
	}
}

// settle waits until nothing moves: a colour half-way to another is neither.
func (p *Page) settle() {
	p.t.Helper()
	Eval[bool](p, "Promise.allSettled(document.getAnimations().map((a) => a.finished)).then(() => true)")
}

// Accessible fails the test for what axe-core finds: WCAG 2.0 to 2.2, A and AA, and its own
// best practices. Nor may the page be wider than its window.
func (p *Page) Accessible(what string) {
	p.t.Helper()
	p.settle()
	// By the debugger and not by a script element, so that the page's policy stays as it is.
	if !Eval[bool](p, "typeof axe === 'object'") {
		call(p, runtime.Evaluate, runtime.EvaluateParams{Expression: axe})
	}
	found := Eval[string](p, `axe.run(document, { resultTypes: ["violations"],
		runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }).then((r) => {
			if (r.passes.length < 10) throw new Error("axe checked next to nothing");
			return JSON.stringify(r.violations) })`)
	var all []finding
	p.must("axe's answer", json.Unmarshal([]byte(found), &all))
	for _, f := range all {
		for _, n := range f.Nodes {
			p.t.Errorf("%s: %s: %s\n%s\n%s", what, f.ID, f.Help, n.HTML, n.FailureSummary)
		}
	}
	if over := Eval[int](p, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
		p.t.Errorf("%s: the page is %d pixels wider than its window", what, over)
	}
}

// Picture writes a picture of what is seen into the folder of -shots, if there is one.
func (p *Page) Picture(name string) {
	p.t.Helper()
	if *shots == "" {
		return
	}
	p.settle()
	r := call(p, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng})
	p.must("write the picture", os.MkdirAll(*shots, 0o755))
	p.must("write the picture", os.WriteFile(filepath.Join(*shots, name+".png"), r.Data, 0o644))
}
