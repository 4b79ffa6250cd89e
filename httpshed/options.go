package httpshed

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/door"
)

// Defaults of Options.
const (
	DefaultStatus          = http.StatusTooManyRequests
	DefaultClosesPerSecond = 100
	DefaultLinger          = time.Second
	DefaultLingerBytes     = 64 << 20
	DefaultMaxLingering    = 256
	DefaultQueueBody       = 64 << 10
)

// LocalID is the one id under which slots of Options.Local are taken.
const LocalID = door.LocalID

// ClosePolicy says whether a refusal closes its connection.
type ClosePolicy uint8

const (
	// CloseRefused closes an HTTP/1.x connection with the refusal, so that the
	// client's retry is balanced anew. It is the default.
	CloseRefused ClosePolicy = iota

	// CloseNever keeps it: for a server behind a balancer of requests (an L7
	// proxy or a mesh), or one that is alone. There closing gains nothing, and
	// costs a handshake. Bodies that may have to be cut are the exception: see
	// LingerBytes.
	CloseNever
)

// Options say what New makes. Semaphore and Key are needed. Options are copied;
// New writes nothing into them.
type Options struct {
	// Semaphore has the slots: shared by a fleet, or of this process alone.
	Semaphore *gotsem.Semaphore

	// Local, if not nil, is this server's own cap beside that of the fleet: a
	// semaphore of this process. A request holds a slot of each. Slots of Local
	// are taken under one id, LocalID, whatever Key says: it is the server that
	// is capped, not a caller.
	//
	// With both, a refusal knows which of the two is full. This server only: the
	// connection is closed, with Retry-After 0, since another server has room.
	// The fleet: a Retry-After from the drain, and no close, since no other
	// server would do.
	Local *gotsem.Semaphore

	// Key names what is limited: a project, an API key, a route. There is no
	// default, and client addresses are no good one: many callers share one, and
	// anyone can write the headers that carry them. An error is answered with
	// 400 (or what a *StatusError says), as is an empty id or one longer than
	// gotsem.MaxID. See ByHeader, ByPathValue, Fixed, HashID, Overflow.
	Key func(*http.Request) (string, error)

	// Also, if not nil, names further ids of which the request holds slots: of its
	// tenant, of a model, of all. Key's is the first and narrowest; they are taken in
	// the order listed, which is to be the same everywhere (see gotsem.Also). None is
	// none. An empty id, or a list that gotsem refuses, is a fault of this server, as
	// it wrote the list: 500, and logged.
	Also func(*http.Request) []string

	// LevelStatus answers a request for which one of several ids is full: level is its
	// place, 0 that of Key. Nil: Status for all but the last, and 503 for the last,
	// where the requests of more than one caller meet.
	LevelStatus func(level int, id string) int

	// Weight is how many slots a request takes of each id, and of Local. Nil: 1.
	// An error, or less than 1, is answered like one of Key.
	Weight func(*http.Request) (int, error)

	// Class says how important a request is. Nil: all are alike. Do not take it from a
	// header that strangers write: whoever could call himself critical would. The edge
	// decides, and inner hops pass on what it said, and never raise it.
	Class func(*http.Request) gotsem.Class

	// Wait is the most that a request waits in line for its slot. The semaphore's
	// Queue says how many may wait. 0: nobody waits.
	Wait time.Duration

	// QueueBody is the largest body that is read ahead for a request that is to
	// wait, in bytes; HTTP/1.x only. Larger ones do not wait. 0: 64 KiB.
	// Negative: no request with a body waits.
	QueueBody int64

	// Skip lets a request through untouched: neither counted nor refused nor
	// queued. It is for probes; see SkipPaths.
	Skip func(*http.Request) bool

	// Status answers a request whose id is full. 0: 429. Another choice is 503,
	// which most meshes retry on another server, as they do not 429.
	Status int

	// LocalStatus answers a request for which only this server is full. 0: as
	// Status.
	LocalStatus int

	// Close says whether refusals close HTTP/1.x connections.
	Close ClosePolicy

	// ClosesPerSecond bounds how many connections refusals close in any second, and
	// so how many handshakes they cost. Above it, connections are kept, but for
	// those that LingerBytes speaks of. 0: 100. Negative: no bound.
	ClosesPerSecond int

	// Linger is how long the rest of a refused request's body may keep the server
	// waiting after the refusal was sent: 64 KiB have to arrive in each Linger, and
	// all of it within 30. It is read and discarded, so that a client or a proxy
	// that sends first and reads then gets to read. On HTTP/2 it is 16 KiB in each
	// quarter of Linger: there the answer's end is sent after it. 0: 1 s.
	Linger time.Duration

	// LingerBytes is how much of that is read, in bytes. A refusal of more, or of a
	// body of unknown length (chunked), announces on HTTP/1.x that the connection is
	// closed, whatever Close says, since it may have to be cut. 0: 64 MiB.
	// Negative: nothing is read.
	LingerBytes int64

	// MaxLingering bounds how many refused requests linger at once. Above it their
	// connections are closed in net/http's way: announced, and cut half a second
	// later. 0: 256. Negative: none lingers.
	MaxLingering int

	// RateLimit, if not empty, is the name of the policy in RateLimit-Policy and
	// RateLimit fields of refusals (draft-ietf-httpapi-ratelimit-headers), such as
	// "capture". Printable ASCII without `"` and `\`.
	RateLimit string

	// Problem answers in application/problem+json (RFC 9457) instead of a line of
	// text.
	Problem bool

	// Answer, if not nil, writes the refusal's body, but for callers by gRPC, gRPC-Web and
	// Connect, who are answered in their own form: it may add fields to h, and
	// returns the body. Retry-After, Cache-Control, Connection and Content-Length
	// are not its to set. It replaces the texts of Problem.
	Answer func(h http.Header, r *http.Request, no Refusal) []byte

	// OnRefuse, if not nil, is told of each refusal, before it is answered. It is
	// called on the request's goroutine, and must not block.
	OnRefuse func(r *http.Request, no Refusal)

	// Logger is told of what is wrong with this server: Key or Weight answered 5xx.
	// Nil: slog.Default().
	Logger *slog.Logger

	// Shadow refuses nothing: a request that would have been refused is counted,
	// reported to OnRefuse, and let through without a slot. Nothing waits.
	Shadow bool
}

// withDefaults returns o with its gaps filled in.
func (o Options) withDefaults() Options {
	o.Status = cmp.Or(o.Status, DefaultStatus)
	o.LocalStatus = cmp.Or(o.LocalStatus, o.Status)
	o.ClosesPerSecond = cmp.Or(o.ClosesPerSecond, DefaultClosesPerSecond)
	o.Linger = cmp.Or(o.Linger, DefaultLinger)
	o.LingerBytes = max(0, cmp.Or(o.LingerBytes, DefaultLingerBytes))
	o.MaxLingering = max(0, cmp.Or(o.MaxLingering, DefaultMaxLingering))
	o.QueueBody = max(0, cmp.Or(o.QueueBody, DefaultQueueBody))
	return o
}

// validate reports all that is wrong with o, which has its defaults.
func (o Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("httpshed: "+format, args...)) }
	if o.Semaphore == nil {
		bad("Options.Semaphore is nil: give the semaphore whose slots requests take")
	}
	if o.Local != nil && o.Local == o.Semaphore {
		bad("Options.Local is Options.Semaphore: give this server a cap of its own, or none")
	}
	if o.Key == nil {
		bad("Options.Key is nil: say what is limited, such as ByPathValue(\"project\"); there is no default")
	}
	if o.Wait < 0 {
		bad("Options.Wait is %v: 0 (nobody waits) or more", o.Wait)
	}
	for _, st := range []struct {
		name string
		code int
	}{{"Status", o.Status}, {"LocalStatus", o.LocalStatus}} {
		if st.code < 400 || st.code > 599 {
			bad("Options.%s is %d: a refusal is 4xx or 5xx, such as 429 or 503", st.name, st.code)
		}
	}
	if o.Close > CloseNever {
		bad("Options.Close is %d: CloseRefused or CloseNever", o.Close)
	}
	if o.Linger < 0 {
		bad("Options.Linger is %v: above 0 (MaxLingering: -1 for none)", o.Linger)
	}
	for _, c := range []byte(o.RateLimit) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			bad("Options.RateLimit is %q: printable ASCII without quotes and backslashes, since it is a name in a header field", o.RateLimit)
			break
		}
	}
	return errors.Join(errs...)
}
