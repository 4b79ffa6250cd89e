// Package server is the HTTP face of screenshotd: captures behind a semaphore,
// probes beside it.
package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/browser"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/guard"
)

// ID is the one id under which captures take their slots.
const ID = "capture"

// DefaultFullWeight is how many slots a full page takes: it is often several
// windows high.
const DefaultFullWeight = 2

// DefaultMaxUnread is what a few slow readers take.
const DefaultMaxUnread = 128 << 20

// errUnread refuses a capture because of others that are not read.
var errUnread = errors.New("too many pictures wait to be read by slow clients")

// writeTime is how long the answer may take to be read.
const writeTime = 30 * time.Second

// Capturer takes pictures: a *browser.Browser.
type Capturer interface {
	Capture(context.Context, browser.Job) (*browser.Picture, error)
	// Failing is why the browser cannot be started; nil if it can, for all that is known.
	Failing() error
}

// Options say what a Server does. Browser and Semaphore are needed.
type Options struct {
	Browser   Capturer
	Semaphore *gotsem.Semaphore // this server's, or that of a fleet
	Local     *gotsem.Semaphore // this server's, if Semaphore is a fleet's

	// Wait is the most that a capture waits for its slot. How many may wait says
	// the semaphore's Queue.
	Wait time.Duration

	// MaxQueue is that Queue, to be told at /pressure.
	MaxQueue int

	// MaxUnread is how many bytes of pictures may wait to be read by their clients.
	// While more do, captures are refused: a reader holds no slot, and so nothing else
	// bounds how many slow ones there are. What is under way still comes on top.
	// 0: DefaultMaxUnread.
	MaxUnread int64

	// FullWeight is how many slots a full page takes. 0: DefaultFullWeight.
	FullWeight int

	// Status and Close are those of httpshed.Options.
	Status int
	Close  httpshed.ClosePolicy

	// Limits of one capture. Zero: DefaultLimits.
	Limits Limits

	// Door, if not nil, stands before the captures instead of the semaphore. The
	// lab compares doors.
	Door func(http.Handler) http.Handler

	// Overload lets the page send this server more than it can take. Browser must then
	// find SamplePage at SampleHost.
	Overload bool

	// Logger is told of captures. Nil: nothing is logged.
	Logger *slog.Logger
}

// refusal is the status of one.
func (o Options) refusal() int { return cmp.Or(o.Status, http.StatusTooManyRequests) }

// Server answers requests for captures.
type Server struct {
	opt     Options
	mux     http.ServeMux
	shed    *httpshed.Shedder
	more    *httpshed.Shedder // takes the rest of what a full page weighs
	metrics *metrics
	recent  recent
	board   *board
	closing atomic.Bool
	stop    sync.Once
	unread  atomic.Int64 // bytes of pictures that are being written to clients

	stopping    chan struct{} // closed by Closing
	overloading sync.Mutex    // held while an overload is under way
}

// New makes a Server. It starts nothing.
func New(o Options) (*Server, error) {
	o.FullWeight = cmp.Or(o.FullWeight, DefaultFullWeight)
	o.MaxUnread = cmp.Or(o.MaxUnread, DefaultMaxUnread)
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FullWeight < 1 {
		return nil, fmt.Errorf("screenshotd: a full page weighs %d: at least 1", o.FullWeight)
	}
	s := &Server{opt: o, stopping: make(chan struct{})}
	s.board = newBoard(s.Pressure, o.Overload)
	shed := httpshed.Options{
		Semaphore: o.Semaphore, Local: o.Local, Key: httpshed.Fixed(ID),
		Weight: s.weight, Wait: o.Wait, QueueBody: maxBody,
		Status: o.Status, Close: o.Close, Problem: true,
		OnRefuse: func(r *http.Request, f httpshed.Refusal) {
			s.recent.add()
			s.board.refuse(ticketOf(r), f, o.Local != nil && f.Reason != httpshed.ServerFull)
		},
	}
	var err error
	if s.shed, err = httpshed.New(shed); err != nil {
		return nil, err
	}
	// Who holds slots must not wait for more of them.
	shed.Wait = 0
	shed.Weight = func(*http.Request) (int, error) { return o.FullWeight - 1, nil }
	if s.more, err = httpshed.New(shed); err != nil {
		return nil, err
	}
	if s.metrics, err = newMetrics(s); err != nil {
		return nil, err
	}
	s.routes()
	return s, nil
}

func (s *Server) routes() {
	door := s.shed.Handler
	if s.opt.Door != nil {
		door = s.opt.Door
	}
	capture := door(http.HandlerFunc(s.admitted))
	s.mux.Handle("GET /capture", s.checked(s.board.watched(capture)))
	s.mux.Handle("POST /capture", s.board.watched(capture)) // refused before its body is read
	s.mux.HandleFunc("GET /healthz", s.healthz)
	s.mux.HandleFunc("GET /readyz", s.readyz)
	s.mux.HandleFunc("GET /pressure", s.pressure)
	s.mux.Handle("GET /metrics", s.metrics.handler())
	s.mux.HandleFunc("GET /live", s.live)
	s.mux.HandleFunc("GET /events", s.events)
	s.mux.HandleFunc("GET /picture/{no}", s.picture)
	if s.opt.Overload {
		s.mux.HandleFunc("POST /overload", s.overload)
	}
	s.mux.Handle("GET /", page())
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "" { // below a prefix that was stripped, without the slash at its end
		at, _, _ := strings.Cut(r.RequestURI, "?")
		w.Header().Set("Location", "./"+path.Base(at)+"/")
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// Closing has /readyz and /pressure say that no more work is wanted here, and ends the
// event streams: a server that shuts down waits for them.
func (s *Server) Closing() {
	s.closing.Store(true)
	s.stop.Do(func() { close(s.stopping) })
}

// jobKey finds the job of a request whose parameters were read before its slot
// was taken.
type jobKey struct{}

// checked reads the parameters of the URL, which costs less than a slot.
func (s *Server) checked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		j, err := s.opt.Limits.parse(r.URL.Query())
		if err != nil {
			s.fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), jobKey{}, j)))
	})
}

// weight is how many slots a request takes at the door. What the body of a POST
// asks for is not known there.
func (s *Server) weight(r *http.Request) (int, error) {
	if j, ok := r.Context().Value(jobKey{}).(*job); ok && j.FullPage {
		return s.opt.FullWeight, nil
	}
	return 1, nil
}

// admitted has a slot.
func (s *Server) admitted(w http.ResponseWriter, r *http.Request) {
	t := ticketOf(r)
	if j, ok := r.Context().Value(jobKey{}).(*job); ok {
		weight, _ := s.weight(r)
		s.board.enter(t, j.URL.Host, weight)
		s.capture(w, r, j)
		return
	}
	s.board.enter(t, "", 1)
	defer s.board.leave(t)
	values, err := readBody(w, r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	j, err := s.opt.Limits.parse(values)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	weight := 1
	capture := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.board.enter(t, j.URL.Host, weight)
		s.capture(w, r, j)
	})
	if j.FullPage && s.opt.FullWeight > 1 && s.opt.Door == nil {
		weight = s.opt.FullWeight
		s.more.Handler(capture).ServeHTTP(w, r)
		return
	}
	capture(w, r)
}

// capture takes the picture. The slot is released when the tab is gone, and not
// before; nor after, however slowly the answer is read.
func (s *Server) capture(w http.ResponseWriter, r *http.Request, j *job) {
	free, t := httpshed.Keep(r.Context()), ticketOf(r)
	release := func() { s.board.leave(t); free() }
	defer release()
	if s.unread.Load() >= s.opt.MaxUnread {
		s.ended(t, s.fail(w, r, errUnread), 0, nil, "")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), j.timeout)
	defer cancel()
	began := time.Now()
	pic, err := s.opt.Browser.Capture(ctx, j.Job)
	if err == nil { // before the slot is free, so that the next one sees it
		size := int64(len(pic.Data))
		s.unread.Add(size)
		defer s.unread.Add(-size)
	}
	release()
	took := time.Since(began)
	if err != nil {
		s.ended(t, s.fail(w, r, err), took, nil, "")
		return
	}
	s.ended(t, "ok", took, pic, "image/"+string(j.Format))
	s.opt.Logger.Info("screenshotd: captured", "host", j.URL.Host, "status", pic.Status, "bytes", len(pic.Data), "took", took.Round(time.Millisecond))
	h := w.Header()
	h.Set("Content-Type", "image/"+string(j.Format))
	h.Set("Content-Length", strconv.Itoa(len(pic.Data)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Screenshot-Target-Status", strconv.Itoa(pic.Status))
	if t != nil {
		h.Set("Screenshot-Number", strconv.FormatUint(t.no, 10))
	}
	h.Set("Screenshot-Size", fmt.Sprintf("%dx%d", pic.Width, pic.Height))
	if pic.Cut {
		h.Set("Screenshot-Cut", "1")
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
	_, _ = bytes.NewReader(pic.Data).WriteTo(w)
}

// ended counts a capture that ended; pic is nil if it failed.
func (s *Server) ended(t *ticket, code string, took time.Duration, pic *browser.Picture, kind string) {
	s.metrics.captured(code, took)
	if pic == nil {
		s.board.end(t, code, took, "", "", nil)
		return
	}
	s.board.end(t, code, took, fmt.Sprintf("%d × %d", pic.Width, pic.Height), kind, pic.Data)
}

// failure is how an error is answered. What is ours is 5xx, what is the caller's
// or the target's 4xx.
type failure struct {
	is     error
	status int
	code   string // in metrics, and for programs
	text   string // empty: the error's own
}

var failures = []failure{
	{guard.ErrBlocked, http.StatusForbidden, "blocked", "The target is not public, or its scheme or port is not allowed."},
	{browser.ErrLoad, http.StatusUnprocessableEntity, "not_loaded", ""},
	{browser.ErrTooLarge, http.StatusUnprocessableEntity, "too_large", ""},
	{browser.ErrCrashed, http.StatusInternalServerError, "page_crashed", ""},
	{errUnread, http.StatusServiceUnavailable, "unread", ""},
	{browser.ErrGone, http.StatusServiceUnavailable, "browser_gone", ""},
	{browser.ErrStart, http.StatusServiceUnavailable, "browser_not_started", "The browser could not be started; the log says why."},
	{browser.ErrClosed, http.StatusServiceUnavailable, "closing", ""},
	{gotsem.ErrLeaseLost, http.StatusServiceUnavailable, "slot_lost", "The capture lost its slot."},
	{gotsem.ErrClosed, http.StatusServiceUnavailable, "closing", ""},
	{context.DeadlineExceeded, http.StatusGatewayTimeout, "timeout", "The page was not captured in the time that it was given."},
}

// statusClientGone is nginx's word for a client that hung up. Nobody reads it but
// access logs.
const statusClientGone = 499

// fail answers an error, and returns its code.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) string {
	f := failure{status: http.StatusInternalServerError, code: "internal", text: "The capture failed; the log says why."}
	var wrong *badRequest
	switch {
	case errors.As(err, &wrong):
		f = failure{status: http.StatusBadRequest, code: "bad_request"}
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		f = failure{status: statusClientGone, code: "client_gone"}
	default:
		for _, known := range failures {
			if errors.Is(err, known.is) {
				f = known
				break
			}
		}
	}
	log := s.opt.Logger.Info
	if f.status == http.StatusInternalServerError || f.status == http.StatusServiceUnavailable {
		log = s.opt.Logger.Warn
	}
	log("screenshotd: not captured", "code", f.code, "error", err)
	if f.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	body, _ := json.Marshal(map[string]any{
		"title": http.StatusText(f.status), "status": f.status, "code": f.code, "detail": cmp.Or(f.text, err.Error()),
	})
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(f.status)
	_, _ = w.Write(append(body, '\n'))
	return f.code
}
