package browser

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/ashfaqjani916/gotsem/screenshotd/internal/guard"
)

// Format is how a picture is encoded.
type Format string

// The formats.
const (
	PNG  Format = "png"
	JPEG Format = "jpeg"
	WebP Format = "webp"
)

// Job is one capture.
type Job struct {
	URL           *url.URL
	Width, Height int     // of the window, in CSS pixels
	Scale         float64 // device pixels per CSS pixel
	FullPage      bool    // the whole height of the page, and not the window's
	Format        Format
	Quality       int // 1–100, for JPEG and WebP

	// MaxHeight is the most CSS pixels of a full page's height, MaxPixels the
	// most device pixels of a picture. What is more is cut off.
	MaxHeight int
	MaxPixels int
}

// Picture is what a capture brings.
type Picture struct {
	Data          []byte
	Width, Height int    // device pixels
	Cut           bool   // the page is longer than the picture
	Status        int    // HTTP status of the page
	URL           string // of the page, after redirects
}

// Capture opens a tab of its own, loads the page, takes the picture and closes the
// tab. When it returns, with an error too, the tab is gone. ctx bounds it, but for
// the closing, which takes 5 s at most.
//
// Errors: the cause of ctx's end, guard.ErrBlocked, ErrLoad, ErrCrashed, ErrTooLarge, ErrGone,
// ErrStart, ErrClosed.
func (b *Browser) Capture(ctx context.Context, j Job) (*Picture, error) {
	if err := b.check(ctx, j.URL); err != nil {
		return nil, err
	}
	p, err := b.use(ctx)
	if err != nil {
		return nil, err
	}
	defer b.done(p)
	pic, err := b.capture(ctx, p, j)
	if err != nil && p.gone() && ctx.Err() == nil {
		if p.ending() == closed {
			return nil, ErrClosed
		}
		return nil, ErrGone
	}
	return pic, err
}

// check refuses early, and in words, what the guard would not connect to.
func (b *Browser) check(ctx context.Context, u *url.URL) error {
	if b.opt.Guard == nil {
		return nil
	}
	err := b.opt.Guard.Check(ctx, u)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var dns *net.DNSError
	if errors.As(err, &dns) { // less the resolver's address, which is nobody's business
		return fmt.Errorf("%w: %s: %s", ErrLoad, u.Hostname(), dns.Err)
	}
	return err
}

func (b *Browser) capture(ctx context.Context, p *process, j Job) (*Picture, error) {
	// Neither the opening nor the closing of the browser context may be cut
	// short: a tab of which nobody knows would be left behind.
	id, err := p.call(context.Background()).open()
	if err != nil {
		b.stuck(p, "open", err)
		return nil, err
	}
	t := b.newTab(ctx, p, id)
	defer func() {
		t.cancel(nil)
		err := p.call(context.Background()).dispose(id)
		if err != nil && !p.gone() && t.crash() {
			// Its renderer was what did not let go: without that the others go on.
			err = p.call(context.Background()).dispose(id)
		}
		if err != nil {
			b.stuck(p, "close", err)
		}
		t.forget()
	}()
	pic, err := t.take(j)
	if cause := context.Cause(t.ctx); err != nil && cause != nil {
		return nil, cause // why it was cut short says more than that it was
	}
	return pic, err
}

// stuck ends a browser that does not open or close a tab when told to.
func (b *Browser) stuck(p *process, what string, err error) {
	if p.gone() {
		return
	}
	b.opt.Logger.Error("screenshotd: the browser is stuck, ending it", "pid", p.pid, "could not", what, "error", err)
	p.end(stuck)
	<-p.root.Done()
}

// tab is the tab of one capture.
type tab struct {
	b      *Browser
	ctx    context.Context // ends with the request's ctx, and when the tab fails
	cancel context.CancelCauseFunc
	forget func()

	loaded atomic.Int64           // bytes
	doc    atomic.Pointer[string] // URL of the last document asked for
}

func (b *Browser) newTab(ctx context.Context, p *process, id cdp.BrowserContextID) *tab {
	t := &tab{b: b}
	tctx, forget := chromedp.NewContext(p.root,
		chromedp.WithExistingBrowserContext(id),
		chromedp.WithListener(t.event))
	t.ctx, t.cancel = context.WithCancelCause(tctx)
	stop := context.AfterFunc(ctx, func() { t.cancel(context.Cause(ctx)) })
	unwatch := p.watch(id, t)
	t.forget = func() {
		stop()
		unwatch()
		forget()
	}
	return t
}

// crash ends the tab's renderer, however busy that is, and reports whether there was
// one to tell.
func (t *tab) crash() bool {
	self := chromedp.FromContext(t.ctx)
	if self == nil || self.Target == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), crashTimeout)
	defer cancel()
	_, _ = cdp.Call(ctx, self.Target, page.Crash, cdp.Empty{}) // nobody is left to answer
	return true
}

const crashTimeout = time.Second

// take sets up the tab, loads the page and takes the picture.
func (t *tab) take(j Job) (*Picture, error) {
	if err := chromedp.Do(t.ctx); err != nil { // opens it
		return nil, err
	}
	self := chromedp.FromContext(t.ctx)
	if _, err := cdp.Call(t.ctx, self.Browser, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{
		Behavior: browser.SetDownloadBehaviorBehaviorDeny, BrowserContextID: self.BrowserContextID,
	}); err != nil {
		return nil, err
	}
	if _, err := cdp.Call(t.ctx, self.Target, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: int64(j.Width), Height: int64(j.Height), DeviceScaleFactor: j.Scale,
	}); err != nil {
		return nil, err
	}
	resp, err := chromedp.Run(t.ctx, chromedp.NavigateResponse(j.URL.String()))
	if load := (*chromedp.LoadError)(nil); errors.As(err, &load) && strings.Contains(load.ErrorText, "ERR_INVALID_AUTH_CREDENTIALS") {
		// Nobody is there to give a password. What the server shows to those who give
		// none is a page, too.
		if err = t.anonymous(); err == nil {
			resp, err = chromedp.Run(t.ctx, chromedp.NavigateResponse(j.URL.String()))
		}
	}
	if err != nil {
		return nil, t.loadError(err)
	}
	if err := t.judge(resp); err != nil {
		return nil, err
	}
	pic := &Picture{Status: int(resp.Status), URL: resp.URL}
	if err := t.picture(j, pic); err != nil {
		return nil, err
	}
	return pic, nil
}

// anonymous has the tab answer that no password is given, from now on. It is not so
// from the start, since each document then waits for a word from here.
func (t *tab) anonymous() error {
	yes := true
	_, err := cdp.Call(t.ctx, chromedp.FromContext(t.ctx).Target, fetch.Enable, fetch.EnableParams{
		HandleAuthRequests: &yes,
		Patterns:           []*fetch.RequestPattern{{URLPattern: "*", ResourceType: network.ResourceTypeDocument}},
	})
	return err
}

// judge refuses a page that is none: an answer of the guard's, or one that came
// from where nothing is captured.
func (t *tab) judge(resp *network.Response) error {
	if resp == nil {
		return fmt.Errorf("%w: it did not answer", ErrLoad)
	}
	for name, value := range resp.Headers {
		if !strings.EqualFold(name, guard.Marker) {
			continue
		}
		if value == "blocked" {
			return fmt.Errorf("%w: %s", guard.ErrBlocked, resp.URL)
		}
		return fmt.Errorf("%w: %s cannot be reached", ErrLoad, resp.URL)
	}
	if kind := strings.ToLower(resp.MimeType); strings.HasSuffix(kind, "/pdf") || strings.HasSuffix(kind, "/x-pdf") {
		return fmt.Errorf("%w: it is a PDF (%s), which the headless browser does not show", ErrLoad, kind)
	}
	u, err := url.Parse(resp.URL)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrLoad, err)
	}
	return guard.Scheme(u)
}

// loadError tells a target that is blocked from one that does not load: Chromium
// says of both that the proxy made no tunnel.
func (t *tab) loadError(err error) error {
	var load *chromedp.LoadError
	if !errors.As(err, &load) {
		return err
	}
	if at := t.doc.Load(); at != nil {
		if u, perr := url.Parse(*at); perr == nil && errors.Is(t.b.check(t.ctx, u), guard.ErrBlocked) {
			return fmt.Errorf("%w: %s", guard.ErrBlocked, *at)
		}
	}
	return fmt.Errorf("%w: %s", ErrLoad, load.ErrorText)
}

// picture takes the picture of the page that is loaded.
func (t *tab) picture(j Job, pic *Picture) error {
	tgt := chromedp.FromContext(t.ctx).Target
	w, h := float64(j.Width), float64(j.Height)
	if j.FullPage {
		m, err := cdp.Call(t.ctx, tgt, page.GetLayoutMetrics, cdp.Empty{})
		if err != nil {
			return err
		}
		if m.CSSContentSize != nil {
			h = max(h, math.Ceil(m.CSSContentSize.Height))
		}
		if most := j.mostHeight(); h > most {
			h, pic.Cut = most, true
		}
	}
	params := page.CaptureScreenshotParams{
		Format:                page.CaptureScreenshotFormat(j.Format),
		CaptureBeyondViewport: &j.FullPage,
		Clip:                  &page.Viewport{Width: w, Height: h, Scale: 1},
	}
	if j.Format != PNG && j.Quality > 0 {
		q := int64(j.Quality)
		params.Quality = &q
	}
	r, err := cdp.Call(t.ctx, tgt, page.CaptureScreenshot, params)
	if err != nil {
		return err
	}
	if len(r.Data) > t.b.opt.MaxPicture {
		return fmt.Errorf("%w: the picture has %d bytes, at most %d are given out: ask for a smaller one, or for jpeg or webp", ErrTooLarge, len(r.Data), t.b.opt.MaxPicture)
	}
	pic.Data = r.Data
	pic.Width, pic.Height = int(math.Round(w*j.Scale)), int(math.Round(h*j.Scale))
	return nil
}

// mostHeight is the most CSS pixels of height that the job's caps leave a full
// page.
func (j Job) mostHeight() float64 {
	h := float64(j.MaxPixels) / (float64(j.Width) * j.Scale * j.Scale)
	return math.Floor(min(h, float64(j.MaxHeight)))
}

// event sees what happens in the tab. It must not block, nor call the browser.
func (t *tab) event(ev any) {
	switch ev := ev.(type) {
	case *page.EventJavascriptDialogOpening:
		// The page stands still until somebody answers.
		go func() {
			tgt := chromedp.FromContext(t.ctx).Target
			_, _ = cdp.Call(t.ctx, tgt, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})
		}()
	case *fetch.EventRequestPaused:
		go func() {
			tgt := chromedp.FromContext(t.ctx).Target
			_, _ = cdp.Call(t.ctx, tgt, fetch.ContinueRequest, fetch.ContinueRequestParams{RequestID: ev.RequestID})
		}()
	case *fetch.EventAuthRequired:
		go func() {
			tgt := chromedp.FromContext(t.ctx).Target
			_, _ = cdp.Call(t.ctx, tgt, fetch.ContinueWithAuth, fetch.ContinueWithAuthParams{
				RequestID:             ev.RequestID,
				AuthChallengeResponse: &fetch.AuthChallengeResponse{Response: fetch.AuthChallengeResponseResponseCancelAuth},
			})
		}()
	case *network.EventRequestWillBeSent:
		top := cdp.FrameID(chromedp.FromContext(t.ctx).Target.TargetID)
		if ev.Type == network.ResourceTypeDocument && ev.FrameID == top {
			t.doc.Store(&ev.Request.URL)
		}
	case *network.EventDataReceived:
		if n := t.loaded.Add(ev.DataLength); n > t.b.opt.MaxPage {
			t.cancel(fmt.Errorf("%w: the page loads more than %d bytes", ErrTooLarge, t.b.opt.MaxPage))
		}
	}
}
