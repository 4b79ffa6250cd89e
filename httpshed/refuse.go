package httpshed

import (
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/door"
)

// Reason is why a request was refused.
type Reason uint8

// The reasons. After TooHeavy and BadRequest only another request helps, after
// ServerFault nothing that a client does, after the others time.
const (
	Full          Reason = iota // every slot of the id is taken
	LineFull                    // and so is every place in line
	WaitedTooLong               // Options.Wait, or another limit in time, was over
	ServerFull                  // this server is full; the fleet is not, or cannot be asked
	TooHeavy                    // heavier than the whole limit
	BadRequest                  // Key or Weight did not accept it
	Unavailable                 // the store could not be asked, and the outage policy does not admit
	Recovering                  // the store lost its memory and makes no grants for now
	ServerFault                 // Key or Weight answered 5xx: the fault is this server's, and logged
	reasons
)

// String returns the reason in words.
func (r Reason) String() string {
	switch r {
	case Full:
		return "full"
	case LineFull:
		return "line full"
	case WaitedTooLong:
		return "waited too long"
	case ServerFull:
		return "server full"
	case TooHeavy:
		return "too heavy"
	case BadRequest:
		return "bad request"
	case Unavailable:
		return "unavailable"
	case Recovering:
		return "recovering"
	case ServerFault:
		return "server fault"
	}
	return "Reason(" + strconv.Itoa(int(r)) + ")"
}

// Refusal is one no.
type Refusal struct {
	Reason     Reason
	ID         string // which id refused; empty: none, or this server (ServerFull)
	Level      int    // its place among those of the request: 0 is Key's, see Options.Also
	Status     int    // of the answer
	RetryAfter int    // the seconds in Retry-After; -1: none was sent
	Close      bool   // the connection is closed with it
	Shadow     bool   // Options.Shadow: the request is let through
	Err        error  // what the semaphore, Key or Weight said; it may name the id, and is for logs alone
}

// StatusError is an error of Key or Weight that chooses its answer: 401 for a
// missing key, 404 for an unknown project. Text is shown to the client. 5xx says that
// the fault is this server's: it counts as ServerFault, and the error is logged, at
// most once a minute.
type StatusError struct {
	Status int // 4xx or 5xx; another is answered as 400
	Text   string
}

// Error returns the text.
func (e *StatusError) Error() string { return "httpshed: " + strconv.Itoa(e.Status) + ": " + e.Text }

// answer is what a client reads.
type answer struct {
	status int
	body   []byte
	kind   []string // Content-Type
	length []string // Content-Length
}

// Header values that every refusal shares. Nobody writes into them: net/http
// copies, and a Set or an Add by somebody else makes a new slice.
var (
	noStore  = []string{"no-store"}
	closing  = []string{"close"}
	kindText = []string{"text/plain; charset=utf-8"}
	kindJSON = []string{"application/problem+json"}
	nosniff  = []string{"nosniff"}
	inSecs   = func() (s [int(door.MaxRetryAfter/time.Second) + 1][]string) {
		for i := range s {
			s[i] = []string{strconv.Itoa(i)}
		}
		return s
	}()
)

func inSeconds(n int) []string {
	if n < len(inSecs) {
		return inSecs[n]
	}
	return []string{strconv.Itoa(n)}
}

// The problem types of draft-ietf-httpapi-ratelimit-headers.
const (
	typeQuota    = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// problem is an RFC 9457 answer.
type problem struct {
	Type     string   `json:"type,omitempty"` // none: the status says it all (RFC 9457 §4.2.1)
	Title    string   `json:"title"`
	Detail   string   `json:"detail,omitempty"`
	Status   int      `json:"status"`
	Violated []string `json:"violated-policies,omitempty"`
}

// answersOf makes the answers ahead, so that a refusal only writes.
func answersOf(o Options) (as [reasons]answer) {
	for reason := range as {
		as[reason] = problemOf(Reason(reason), o).answer(o)
	}
	return as
}

// problemOf is what is said of a reason.
func problemOf(reason Reason, o Options) problem {
	p := problem{Status: o.Status, Type: typeQuota}
	switch reason {
	case Full:
		p.Title = "Too many at once. Retry-After says when to try again."
	case LineFull:
		p.Title = "Too many at once, and too many wait. Retry-After says when to try again."
	case WaitedTooLong:
		p.Title = "Too many at once: none came free in time. Retry-After says when to try again."
	case ServerFull:
		p.Title = "This server is full. Another connection may lead to one that is not."
		p.Status, p.Type = o.LocalStatus, typeCapacity
	case TooHeavy:
		// 413: "larger than the server is willing to process" (RFC 9110
		// §15.5.14), which no client or proxy sends again as it is.
		p.Title = "This asks for more at once than is ever granted. Ask for less."
		p.Status, p.Type = http.StatusRequestEntityTooLarge, ""
	case BadRequest:
		p.Title = "The request does not say whom it is for."
		p.Status, p.Type = http.StatusBadRequest, ""
	case ServerFault:
		p.Title = "This server cannot tell whom the request is for."
		p.Status, p.Type = http.StatusInternalServerError, ""
	case Unavailable:
		p.Title = "The limit cannot be checked at the moment. Retry-After says when to try again."
		p.Status, p.Type = http.StatusServiceUnavailable, typeCapacity
	case Recovering:
		p.Title = "No request is admitted for a moment. Retry-After says when to try again."
		p.Status, p.Type = http.StatusServiceUnavailable, typeCapacity
	}
	return p
}

func (p problem) answer(o Options) answer {
	a := answer{status: p.Status, body: []byte(p.Title + "\n"), kind: kindText}
	if o.Problem {
		if p.Type == typeQuota && o.RateLimit != "" {
			p.Violated = []string{o.RateLimit}
		}
		if p.Type == "" {
			p.Title, p.Detail = http.StatusText(p.Status), p.Title
		}
		a.body, _ = json.Marshal(p) // strings and numbers: it cannot fail
		a.kind = kindJSON
	}
	a.length = []string{strconv.Itoa(len(a.body))}
	return a
}

// answerTo returns the answer to v.
func (s *Shedder) answerTo(v *verdict) *answer {
	if v.reason == BadRequest || v.reason == ServerFault {
		return s.answerToBad(v.err)
	}
	if v.levels > 1 && v.full != nil && v.reason != ServerFull {
		return s.answerAtLevel(v)
	}
	return &s.answers[v.reason]
}

// answerAtLevel is the answer where one of several ids is full.
func (s *Shedder) answerAtLevel(v *verdict) *answer {
	status := s.opt.Status
	switch {
	case s.opt.LevelStatus != nil:
		if status = s.opt.LevelStatus(v.full.Level, v.full.ID); status < 400 || status > 599 {
			status = s.opt.Status
		}
	case v.full.Level == v.levels-1:
		status = http.StatusServiceUnavailable
	}
	a := &s.answers[v.reason]
	if status == a.status {
		return a
	}
	p := problemOf(v.reason, s.opt)
	if p.Status = status; status == http.StatusServiceUnavailable {
		p.Type = typeCapacity // it is no quota of the caller's
	}
	own := p.answer(s.opt)
	return &own
}

// refusing names the id that refused, and its place.
func (v *verdict) refusing() (id string, level int) {
	switch {
	case v.reason == ServerFull:
		return "", 0
	case v.full != nil:
		return v.full.ID, v.full.Level
	}
	return v.id, 0
}

func (s *Shedder) answerToBad(err error) *answer {
	var chosen *StatusError
	if !errors.As(err, &chosen) {
		return &s.answers[BadRequest]
	}
	p := problem{Title: chosen.Text, Status: chosen.Status}
	if p.Status < 400 || p.Status > 599 {
		p.Status = http.StatusBadRequest
	}
	a := p.answer(s.opt)
	return &a
}

// refuse answers no.
func (s *Shedder) refuse(w http.ResponseWriter, r *http.Request, v *verdict) {
	a := s.answerTo(v)
	now := s.now()
	no := Refusal{Reason: v.reason, Status: a.status, Close: s.closesFor(r, v, now), Err: v.err}
	no.ID, no.Level = v.refusing()
	form := rpcOf(r)
	var rest *rest
	if form != gRPC || r.ProtoMajor == 1 { // else what is sent early is no "trailers-only" any more
		rest = s.restOf(w, r, &no)
	}
	if rest != nil && rest.reads {
		defer s.lingering.Add(-1)
	}
	no.RetryAfter = s.retryAfter(v, no.Close)
	s.stats.refused[no.Reason].Add(1)
	if s.opt.OnRefuse != nil {
		s.opt.OnRefuse(r, no)
	}

	h := w.Header()
	status := no.Status
	if form != noRPC {
		a = &answer{}
		status, a.body = s.answerRPC(h, r, form, v, &no)
		a.kind = h["Content-Type"]
		if a.length = nil; a.body != nil {
			a.length = []string{strconv.Itoa(len(a.body))}
		}
	} else if s.opt.Answer != nil {
		a = &answer{kind: a.kind, body: s.opt.Answer(h, r, no)}
		a.length = []string{strconv.Itoa(len(a.body))}
		if kind := h["Content-Type"]; kind != nil {
			a.kind = kind
		}
	}
	h["Cache-Control"] = noStore // RFC 6585 §4: a 429 must not be cached
	h["Content-Type"] = a.kind
	h["X-Content-Type-Options"] = nosniff
	if a.length != nil {
		h["Content-Length"] = a.length
	}
	if no.RetryAfter >= 0 {
		h["Retry-After"] = inSeconds(no.RetryAfter)
	}
	if no.Close {
		h["Connection"] = closing // net/http closes for exactly this
		s.stats.closed.Add(1)
	}
	if s.opt.RateLimit != "" && v.full != nil && v.reason != ServerFull {
		h["Ratelimit-Policy"] = []string{`"` + s.opt.RateLimit + `";q=` + strconv.Itoa(v.full.Limit) + `;qu="concurrent-requests"`}
		h["Ratelimit"] = []string{`"` + s.opt.RateLimit + `";r=0;t=` + strconv.Itoa(no.RetryAfter)}
	}
	w.WriteHeader(status)
	if len(a.body) > 0 {
		_, _ = w.Write(a.body)
	}
	if rest != nil {
		s.linger(rest, no.Close)
	}
}

// shadow counts and tells what would have been refused.
func (s *Shedder) shadow(r *http.Request, v *verdict) {
	s.stats.shadowed.Add(1)
	if v.gone {
		return
	}
	s.stats.refused[v.reason].Add(1)
	if s.opt.OnRefuse != nil {
		id, level := v.refusing()
		s.opt.OnRefuse(r, Refusal{Reason: v.reason, ID: id, Level: level, Status: s.answerTo(v).status, RetryAfter: s.retryAfter(v, false), Shadow: true, Err: v.err})
	}
}

// closesFor reports whether the connection is closed with the refusal: on HTTP/1.x,
// if that may lead the client to a server with room, and the budget has it.
func (s *Shedder) closesFor(r *http.Request, v *verdict, now time.Duration) bool {
	if s.opt.Close == CloseNever || r.ProtoMajor != 1 {
		return false
	}
	switch v.reason {
	case Full, LineFull, WaitedTooLong:
		if s.opt.Local != nil {
			return false // the fleet is full: no other server would do
		}
	case ServerFull:
	case Unavailable:
		if !errors.Is(v.err, gotsem.ErrClosed) { // this server is on its way out
			return false
		}
	default:
		return false
	}
	if s.closes.spend(now) {
		return true
	}
	s.stats.spared.Add(1)
	return false
}

// retryAfter returns the seconds to say in Retry-After; -1: none.
func (s *Shedder) retryAfter(v *verdict, closes bool) int {
	switch v.reason {
	case Full, LineFull, WaitedTooLong:
		if v.full == nil { // a limit in time was over before there was an answer
			return 1 + rand.IntN(3)
		}
		return comeback(s.door.RetryIn(v.full))
	case ServerFull:
		// 0 is "now, elsewhere": where that is where the retry goes.
		if v.fleet == door.Free && (closes || s.opt.Close == CloseNever) {
			return 0
		}
		return comeback(s.door.RetryInLocal(v.full))
	case Recovering:
		var e *gotsem.RecoveringError
		if errors.As(v.err, &e) {
			return seconds(min(e.RetryAfter, door.MaxRetryAfter) + rand.N(minSpread))
		}
	case TooHeavy, BadRequest, ServerFault:
		return -1
	}
	return 1 + rand.IntN(3) // a store that is back is noticed within a second
}

// minSpread is over how long clients that were refused together come back at least: a
// header has whole seconds, and chance spreads those who would share one.
const minSpread = 2 * time.Second

// comeback is what a header says of a promise.
func comeback(wait time.Duration, measured bool) int {
	if !measured {
		return 1 + rand.IntN(max(seconds(wait), 3))
	}
	return seconds(door.Spread(wait, minSpread))
}

// seconds rounds up, to at least 1.
func seconds(d time.Duration) int {
	return max(1, int((d+time.Second-1)/time.Second))
}

// What is read of a refused request's body after its answer, to spare the sender a
// reset (RFC 9112 §9.6), beside Options.Linger and Options.LingerBytes.
const (
	lingerPace  = 64 << 10               // bytes that have to arrive in each Linger, or it is over
	lingerSpans = 30                     // Lingers that all of it may take
	h2Share     = 4                      // on HTTP/2: a quarter of lingerPace in each quarter of Linger
	hangUp      = 500 * time.Millisecond // between half-closing and closing, as in net/http
)

// rest is what of a refused request's body is not read yet.
type rest struct {
	rc     *http.ResponseController
	body   io.Reader
	proto  int   // the major version
	length int64 // -1: unknown
	reads  bool  // it is read after the answer: there is a place, and a deadline
}

// restOf returns what is left to arrive of the request's body, nil if nothing is. It
// announces in no that the connection is closed where it cannot promise to read all
// of it: a client that keeps a connection, and finds it cut, takes that for a fault.
func (s *Shedder) restOf(w http.ResponseWriter, r *http.Request, no *Refusal) *rest {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil
	}
	re := &rest{rc: http.NewResponseController(w), body: r.Body, proto: r.ProtoMajor, length: r.ContentLength}
	re.reads = re.rc.SetReadDeadline(time.Now().Add(s.opt.Linger)) == nil
	if re.reads && s.lingering.Add(1) > int64(s.opt.MaxLingering) {
		s.lingering.Add(-1)
		re.reads = false
		s.stats.cut.Add(1)
	}
	if r.ProtoMajor != 1 || no.Close {
		return re
	}
	// net/http would read the body first, before a word of the answer. Only a
	// connection that is closed, or one in full duplex, is answered at once.
	no.Close = !re.reads || re.length < 0 || re.length > s.opt.LingerBytes ||
		len(r.Header["Expect"]) > 0 || re.rc.EnableFullDuplex() != nil
	return re
}

// linger has the answer sent, and then reads what of the request's body is still
// under way: a client, or a proxy, that sends all of it before it reads would
// otherwise meet a reset, which can destroy the answer. On HTTP/2 it would meet the
// end of its stream, which some take for a fault.
func (s *Shedder) linger(re *rest, closes bool) {
	if re.reads {
		err := re.rc.Flush()
		held := errors.Is(err, http.ErrNotSupported)
		if held && closes {
			return // something around us keeps the answer back until we return
		}
		if (err == nil || held) && s.lingers(re) {
			return // the connection is in order, whether it is kept or closed
		}
	}
	switch {
	case re.proto != 1:
	case closes:
		// Its own care against resets is left to net/http: it closes its half, waits
		// 500 ms, and closes; or, if little is left, waits for that, which gets as long.
		if re.reads {
			_ = re.rc.SetReadDeadline(time.Now().Add(hangUp))
		}
	default:
		// On a connection that was to be kept it would take what is left of the body
		// for a request.
		conn, _, err := re.rc.Hijack()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		hang(conn)
	}
}

// hang closes a connection that is being sent to, so that the other side gets to
// read: one half, and after a while the other.
func hang(conn net.Conn) {
	defer conn.Close()
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = conn.SetReadDeadline(time.Now().Add(hangUp))
		_, _ = io.Copy(io.Discard, conn)
	}
}

var lingerBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// lingers reads the rest of a body for as long as it arrives at some pace, within
// bounds. It reports whether it came to its end.
func (s *Shedder) lingers(re *rest) bool {
	buf := lingerBuffers.Get().(*[32 << 10]byte)
	defer lingerBuffers.Put(buf)
	span, pace := s.opt.Linger, int64(lingerPace)
	last := time.Now().Add(lingerSpans * span)
	if re.proto > 1 {
		// The end of the answer is sent when we return. A client that stopped sending,
		// since it has read its status, is not kept waiting for that end.
		span, pace = span/h2Share, pace/h2Share
	}
	ends := time.Now().Add(span)
	if re.rc.SetReadDeadline(ends) != nil {
		return false
	}
	var all, paced int64
	for {
		n, err := re.body.Read(buf[:])
		all += int64(n)
		paced += int64(n)
		switch {
		case err == io.EOF:
			return true
		case err == nil && all <= s.opt.LingerBytes:
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
			s.stats.cut.Add(1)
			return false
		default: // the client went
			return false
		}
		if paced < pace {
			continue
		}
		if now := time.Now(); ends.Sub(now) < span-span/8 && ends.Before(last) {
			paced = 0
			if ends = now.Add(span); ends.After(last) {
				ends = last
			}
			if re.rc.SetReadDeadline(ends) != nil {
				return false
			}
		}
	}
}

// budget is so many in any second. It remembers when each of them was, since a count
// that begins anew with each second of a clock lets twice as many through around the
// moment in which it does.
type budget struct {
	perSecond int // negative: no bound

	mu    sync.Mutex
	spent []time.Duration // the last perSecond of them, a ring
	next  int             // the oldest of them, once the ring is full
}

// spend takes one, if there is one left.
func (b *budget) spend(now time.Duration) bool {
	if b.perSecond < 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.spent) < b.perSecond {
		b.spent = append(b.spent, now)
		return true
	}
	if now-b.spent[b.next] < time.Second {
		return false
	}
	b.spent[b.next] = now
	b.next = (b.next + 1) % b.perSecond
	return true
}
