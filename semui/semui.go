// Package semui is a page for operators: which ids hurt, who holds an id, and
// (for those who may) what its limit is set to. It is one http.Handler, with nothing to
// build and nothing fetched from elsewhere.
//
//	page, err := semui.New(semui.Options{Semaphore: sem, Authorize: semui.ViewOnly})
//	mux.Handle("/ops/limits/", http.StripPrefix("/ops/limits", page))
//	srv.RegisterOnShutdown(func() { page.Close() })
//
// The store is asked only while somebody looks, Options.Budget times a second at most.
// Whoever serves the page decides who sees it: put it behind what your other internal
// pages are behind, and say in Authorize who may change limits. Its URLs are relative, so
// any prefix will do, as long as it is stripped. Do not mount it inside a Shedder.
//
// Reading order: semui.go (options, routes, what is let in), internal/watch (what is asked
// of the store, and when), refusals.go (what this process knows by itself), look.go (what the
// screens show, as JSON), stream.go, change.go (what operators may do), seal.go, assets.
package semui

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/watch"
)

// Access is what somebody may do.
type Access uint8

// The rights; each has those before it.
const (
	None    Access = iota // 403
	View                  // see
	Operate               // and change limits
)

// Options are how a page is made.
type Options struct {
	Semaphore *gotsem.Semaphore // required: its store is shown

	// Authorize is required: it says for each request who asks, and what they may do.
	// See ViewOnly.
	Authorize func(*http.Request) (who string, a Access)

	// Hosts are the names, without port, that the page answers to; others are answered
	// 421, so that no foreign name can be pointed at it. None: any; a server in front decides.
	Hosts []string

	// TrustedOrigins, such as "https://ops.example", may send changes besides the page's
	// own: for proxies that rewrite Host.
	TrustedOrigins []string

	// LimitUnknown: the semaphore's own limit is not the fleet's, so only limits that
	// were set by hand are shown. For programs that acquire nothing themselves.
	LimitUnknown bool

	Pinned   []string      // ids that are always looked at
	Interval time.Duration // between two looks at the ids shown; 0: 2 s; 100 ms or more
	Budget   int           // calls to the store a second, at most; 0: 150

	// Audit is told of each change that was tried; nil: Logger is, at level Info.
	Audit  func(context.Context, Event)
	Logger *slog.Logger // nil: slog.Default
}

// Event is a change that an operator tried.
type Event struct {
	Who, Remote string
	Action      string // "limit", or "revoke"
	ID          string
	Seen        uint64        // limit: the version that was set when the operator looked; 0: none was
	New         *int          // limit: nil: what was set was to be taken off
	For         time.Duration // limit: for so long; 0: without an end
	Mark        string        // revoke: of the slot, as the page shows it
	Reason      string
	Err         error // it was refused, failed, or is not known to have been done
}

// ViewOnly lets everybody look, and nobody change anything.
func ViewOnly(*http.Request) (string, Access) { return "", View }

// Handler is the page.
type Handler struct {
	opt     Options
	cross   *http.CrossOriginProtection
	watch   *watch.Watch
	details details
	changes changes
	seal    seal

	refusals  *refusals
	unobserve func()
	storeView storeView
	streams   streams
	closing   sync.Once
}

// New makes a page. It asks nothing of the store yet.
func New(o Options) (*Handler, error) {
	if o.Semaphore == nil {
		return nil, errors.New("semui: Options.Semaphore is nil: name the one whose store is to be shown")
	}
	if o.Authorize == nil {
		return nil, errors.New("semui: Options.Authorize is nil: say who may see the page; semui.ViewOnly lets everybody look")
	}
	if o.Interval == 0 {
		o.Interval = 2 * time.Second
	}
	if o.Budget == 0 {
		o.Budget = 150
	}
	if o.Interval < 100*time.Millisecond || o.Budget < 1 {
		return nil, fmt.Errorf("semui: Interval %v, Budget %d: 100ms and 1 at least, or 0 for 2s and 150", o.Interval, o.Budget)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	h := &Handler{opt: o, cross: http.NewCrossOriginProtection(), seal: newSeal(), refusals: newRefusals(), streams: streams{closed: make(chan struct{})}}
	h.watch = watch.New(watch.Options{Semaphore: o.Semaphore, Interval: o.Interval, Budget: o.Budget, Pinned: o.Pinned, Also: h.refusals.worst})
	for _, origin := range o.TrustedOrigins {
		if err := h.cross.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("semui: TrustedOrigins: %w", err)
		}
	}
	h.unobserve = o.Semaphore.Observe(&gotsem.Observer{Answered: h.refusals.answered})
	return h, nil
}

// Close ends what looks at the store, and the streams, and returns when the store is not
// looked at any more. The page then answers 503.
func (h *Handler) Close() error {
	h.closing.Do(func() {
		h.unobserve()
		close(h.streams.closed)
		h.watch.Close()
	})
	return nil
}

//go:embed assets
var files embed.FS

// assets are by name; their ETags are their content's hash.
var assets = func() map[string]asset {
	all := make(map[string]asset)
	entries, _ := files.ReadDir("assets")
	for _, e := range entries {
		content, _ := files.ReadFile("assets/" + e.Name())
		sum := sha256.Sum256(content)
		all[e.Name()] = asset{content, mime.TypeByExtension(path.Ext(e.Name())), `"` + hex.EncodeToString(sum[:8]) + `"`}
	}
	return all
}()

type asset struct {
	content    []byte
	kind, etag string
}

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP implements http.Handler. The path is the one below the prefix.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", policy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cross-Origin-Opener-Policy", "same-origin")
	head.Set("Cache-Control", "no-store")
	if !h.host(r.Host) {
		http.Error(w, "this page does not answer to that host name", http.StatusMisdirectedRequest)
		return
	}
	who, access := h.opt.Authorize(r)
	if access < View {
		http.Error(w, "you may not see this page", http.StatusForbidden)
		return
	}
	if err := h.cross.Check(r); err != nil {
		http.Error(w, "changes are taken from the page itself only: "+err.Error(), http.StatusForbidden)
		return
	}
	route := strings.TrimPrefix(r.URL.Path, "/")
	if change := map[string]func(http.ResponseWriter, *http.Request, string, Access){"api/v1/limit": h.serveLimit, "api/v1/revoke": h.serveRevoke}[route]; change != nil {
		if h.only(w, r, http.MethodPost) {
			change(w, r, who, access)
		}
		return
	}
	if !h.only(w, r, http.MethodGet, http.MethodHead) {
		return
	}
	switch {
	case r.URL.Path == "":
		// Without the slash at its end, the page's relative URLs would miss the prefix.
		asked, _, _ := strings.Cut(r.RequestURI, "?")
		head.Set("Location", "./"+path.Base(asked)+"/")
		w.WriteHeader(http.StatusMovedPermanently)
	case route == "":
		serveAsset(w, r, "index.html")
	case route == "api/v1/events":
		h.serveEvents(w, r, access)
	case route == "api/v1/ids" || route == "api/v1/id" || route == "api/v1/holders" || route == "api/v1/store":
		h.serveView(w, r, path.Base(route), access)
	case strings.HasPrefix(route, "assets/"):
		serveAsset(w, r, strings.TrimPrefix(route, "assets/"))
	default:
		http.Error(w, "there is no such page", http.StatusNotFound)
	}
}

// host reports whether the page answers to a Host header.
func (h *Handler) host(host string) bool {
	if len(h.opt.Hosts) == 0 {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return slices.ContainsFunc(h.opt.Hosts, func(ours string) bool { return strings.EqualFold(ours, strings.Trim(host, "[]")) })
}

// only answers 405 to other methods.
func (h *Handler) only(w http.ResponseWriter, r *http.Request, methods ...string) bool {
	if slices.Contains(methods, r.Method) {
		return true
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	http.Error(w, "use "+strings.Join(methods, " or "), http.StatusMethodNotAllowed)
	return false
}

func serveAsset(w http.ResponseWriter, r *http.Request, name string) {
	a, ok := assets[name]
	if !ok {
		http.Error(w, "there is no such file", http.StatusNotFound)
		return
	}
	w.Header().Set("Cache-Control", "no-cache") // asked for again each time; a 304 is the usual answer
	w.Header().Set("ETag", a.etag)
	if r.Header.Get("If-None-Match") == a.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", a.kind)
	if r.Method != http.MethodHead {
		_, _ = io.Copy(w, strings.NewReader(string(a.content)))
	}
}
