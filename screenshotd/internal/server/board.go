package server

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem/httpshed"
)

// Bounds of what the page shows, and so of what is kept for it.
const (
	boxesMost = 64                     // slots that are drawn; of more only the number is told
	keptMost  = 12                     // captures that ended, and refusals
	hostMost  = 100                    // bytes of a host
	fresh     = 100 * time.Millisecond // a picture of the board serves all viewers for so long
	asked     = 500 * time.Millisecond // between two looks at the semaphores
)

// board knows what the page shows: who has which slot, who waits, what was refused and
// what was captured lately. A request costs it a few short locks. All else, such as
// asking the semaphores and making JSON, is done only while somebody looks.
//
// The page has no more rights than the log: of a capture's URL it shows the host, and no
// picture but those of the samples. Who asked for another has it already.
type board struct {
	ask      func(context.Context) Pressure
	overload bool // is offered

	mu       sync.Mutex
	last     uint64 // number of the newest ticket
	boxes    []*ticket
	out      int // tickets that hold slots, with a box or without
	arrived  map[*ticket]struct{}
	ended    []ended
	refused  []refused
	flooding *overloadState
	changed  chan struct{} // closed at the next change, if somebody looks
	viewers  int
	pressure Pressure
	asking   sync.Mutex
	askedAt  time.Time

	drawing sync.Mutex
	drawn   []byte
	drawnAt time.Time
	drawnOf chan struct{}
}

// ticket is one request for a capture, from its arrival to its end. Its fields are the
// board's, under mu.
type ticket struct {
	no      uint64
	host    string
	sample  bool
	arrived time.Time
	entered time.Time // zero: it has no slot yet
	weight  int
	gone    bool
}

type ended struct {
	no      uint64
	host    string
	code    string // "ok", or the failure's
	took    time.Duration
	size    string
	picture []byte // of a sample
	kind    string
}

type refused struct {
	no     uint64
	reason string
	status int
	fleet  bool
	at     time.Time
	took   time.Duration
	again  int // seconds; -1: there is no use in trying again
}

// overloadState is how far an overload is.
type overloadState struct {
	Sent int `json:"sent"`
	Of   int `json:"of"`
}

type ticketKey struct{}
type sampleKey struct{}

func ticketOf(r *http.Request) *ticket {
	t, _ := r.Context().Value(ticketKey{}).(*ticket)
	return t
}

func newBoard(ask func(context.Context) Pressure, overload bool) *board {
	return &board{ask: ask, overload: overload, arrived: make(map[*ticket]struct{}), changed: make(chan struct{})}
}

// tell wakes who looks. It needs mu.
func (b *board) tell() {
	if b.viewers > 0 {
		close(b.changed)
		b.changed = make(chan struct{})
	}
}

// watched gives each request its ticket, for as long as it is here.
func (b *board) watched(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := &ticket{arrived: time.Now()}
		_, t.sample = r.Context().Value(sampleKey{}).(struct{})
		b.mu.Lock()
		b.last++
		t.no = b.last
		b.arrived[t] = struct{}{}
		b.mu.Unlock()
		defer b.leave(t)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), ticketKey{}, t)))
	})
}

// refuse keeps a refusal.
func (b *board) refuse(t *ticket, f httpshed.Refusal, fleet bool) {
	if t == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.arrived, t)
	now := time.Now()
	b.refused = keep(b.refused, refused{
		no: t.no, reason: f.Reason.String(), status: f.Status, fleet: fleet, at: now, took: now.Sub(t.arrived), again: f.RetryAfter,
	})
	b.tell()
}

// keep adds to the newest keptMost.
func keep[T any](all []T, one T) []T {
	if len(all) == keptMost {
		all = slices.Delete(all, 0, 1)
	}
	return append(all, one)
}

// enter gives a request that holds slots its boxes; further weight gets further ones.
func (b *board) enter(t *ticket, host string, weight int) {
	if t == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.entered.IsZero() {
		delete(b.arrived, t)
		t.entered = time.Now()
		b.out++
	}
	t.host = cmp.Or(host[:min(len(host), hostMost)], t.host)
	for i := 0; i < boxesMost && t.weight < weight; i++ {
		if i == len(b.boxes) {
			b.boxes = append(b.boxes, nil)
		}
		if b.boxes[i] == nil {
			b.boxes[i] = t
			t.weight++
		}
	}
	b.tell()
}

// leave empties a request's boxes. It comes before the slots are released, so that there
// are never more boxes full than slots taken.
func (b *board) leave(t *ticket) {
	if t == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.gone {
		return
	}
	t.gone = true
	delete(b.arrived, t)
	if t.entered.IsZero() {
		return
	}
	b.out--
	for i, in := range b.boxes {
		if in == t {
			b.boxes[i] = nil
		}
	}
	for n := len(b.boxes); n > 0 && b.boxes[n-1] == nil; n-- {
		b.boxes = b.boxes[:n-1]
	}
	b.tell()
}

// end keeps how a capture ended.
func (b *board) end(t *ticket, code string, took time.Duration, size, kind string, picture []byte) {
	if t == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e := ended{no: t.no, host: t.host, code: code, took: took, size: size}
	if t.sample {
		e.picture, e.kind = picture, kind
	}
	b.ended = keep(b.ended, e)
	b.tell()
}

// picture is that of a sample that was captured lately.
func (b *board) picture(no uint64) (picture []byte, kind string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.ended {
		if e.no == no {
			return e.picture, e.kind
		}
	}
	return nil, ""
}

func (b *board) overloads(s *overloadState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flooding = s
	b.tell()
}

// join counts one more who looks. It reports false if there are too many.
func (b *board) join(most int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.viewers >= most {
		return false
	}
	b.viewers++
	return true
}

func (b *board) part() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.viewers--
}

// refresh asks the semaphores how they stand, for all who look, and not too often.
func (b *board) refresh(ctx context.Context) {
	if !b.asking.TryLock() {
		return // somebody does
	}
	defer b.asking.Unlock()
	if time.Since(b.askedAt) < asked*9/10 {
		return
	}
	p := b.ask(ctx)
	b.askedAt = time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	same := p.Running == b.pressure.Running && p.Queued == b.pressure.Queued && p.MaxConcurrent == b.pressure.MaxConcurrent &&
		p.Reason == b.pressure.Reason && p.RecentlyRejected == b.pressure.RecentlyRejected &&
		(p.Fleet == b.pressure.Fleet || p.Fleet != nil && b.pressure.Fleet != nil && *p.Fleet == *b.pressure.Fleet)
	b.pressure = p
	if !same {
		b.tell()
	}
}

// What the page is sent. Times are milliseconds by the server's clock, told as how long
// ago, so that the clocks need not agree.
type (
	drawing struct {
		Boxes    []*box            `json:"boxes"` // null: free
		More     int               `json:"more"`  // captures without a box
		Limit    int               `json:"limit"`
		Held     int               `json:"held"`
		Line     line              `json:"line"`
		Minute   int               `json:"refused_last_minute"`
		Admitted uint64            `json:"admitted"`
		Reasons  map[string]uint64 `json:"reasons"`
		Refused  []refusedJSON     `json:"refused"`
		Ended    []endedJSON       `json:"ended"`
		Fleet    *FleetPressure    `json:"fleet"`
		Overload *overloadState    `json:"overload"`
		Trouble  string            `json:"trouble"` // why nothing is taken at all
		Flood    *flood            `json:"flood"`   // what an overload would be; null: none is offered
	}
	flood struct {
		Of int   `json:"of"`
		MS int64 `json:"ms"`
	}
	box struct {
		No   uint64 `json:"no"`
		Host string `json:"host"`
		MS   int64  `json:"ms"`
	}
	line struct {
		N        int   `json:"n"`
		Most     int   `json:"most"`
		OldestMS int64 `json:"oldest_ms"`
	}
	refusedJSON struct {
		No      uint64  `json:"no"`
		Reason  string  `json:"reason"`
		Status  int     `json:"status"`
		Fleet   bool    `json:"fleet"`
		TookMS  float64 `json:"took_ms"`
		AgainMS *int64  `json:"again_ms"` // until Retry-After is over; null: none was sent
	}
	endedJSON struct {
		No      uint64 `json:"no"`
		Host    string `json:"host"`
		Code    string `json:"code"`
		MS      int64  `json:"ms"`
		Size    string `json:"size"`
		Picture bool   `json:"picture"`
	}
)

// draw returns what the page shows, in JSON, and what is closed when that changes.
func (b *board) draw(s httpshed.Stats) ([]byte, <-chan struct{}) {
	b.drawing.Lock()
	defer b.drawing.Unlock()
	b.mu.Lock()
	of := b.changed
	if of == b.drawnOf && time.Since(b.drawnAt) < fresh {
		b.mu.Unlock()
		return b.drawn, of
	}
	d := b.sketch(time.Now())
	b.mu.Unlock()
	d.Admitted = s.Admitted
	d.Reasons = make(map[string]uint64)
	for r, n := range map[httpshed.Reason]uint64{
		httpshed.Full: s.Full, httpshed.LineFull: s.LineFull, httpshed.WaitedTooLong: s.WaitedTooLong, httpshed.ServerFull: s.ServerFull,
		httpshed.TooHeavy: s.TooHeavy, httpshed.BadRequest: s.BadRequest, httpshed.Unavailable: s.Unavailable,
		httpshed.Recovering: s.Recovering, httpshed.ServerFault: s.ServerFault,
	} {
		if n > 0 {
			d.Reasons[r.String()] = n
		}
	}
	b.drawn, _ = json.Marshal(d)
	b.drawnAt, b.drawnOf = time.Now(), of
	return b.drawn, of
}

// sketch needs mu.
func (b *board) sketch(now time.Time) drawing {
	p := b.pressure
	d := drawing{
		Boxes: make([]*box, min(boxesMost, max(len(b.boxes), p.MaxConcurrent))), Limit: p.MaxConcurrent,
		Refused: []refusedJSON{}, Ended: []endedJSON{}, Minute: p.RecentlyRejected, Fleet: p.Fleet, Overload: b.flooding,
		Line: line{Most: p.MaxQueued},
	}
	if p.Reason != "full" && p.Reason != "the fleet is full" {
		d.Trouble = p.Reason
	}
	if b.overload && p.MaxConcurrent > 0 {
		n, every := floodOf(p.MaxConcurrent)
		d.Flood = &flood{n, (time.Duration(n-1) * every).Milliseconds()}
	}
	drawn := make(map[*ticket]bool)
	for i, t := range b.boxes {
		if t != nil {
			d.Held++
			drawn[t] = true
			d.Boxes[i] = &box{No: t.no, Host: t.host, MS: now.Sub(t.entered).Milliseconds()}
		}
	}
	d.More = b.out - len(drawn)
	if p.MaxQueued > 0 {
		d.Line.N = len(b.arrived)
		for t := range b.arrived {
			d.Line.OldestMS = max(d.Line.OldestMS, now.Sub(t.arrived).Milliseconds())
		}
	}
	for _, f := range slices.Backward(b.refused) {
		one := refusedJSON{No: f.no, Reason: f.reason, Status: f.status, Fleet: f.fleet, TookMS: float64(f.took.Microseconds()) / 1000}
		if f.again >= 0 {
			left := max(0, time.Duration(f.again)*time.Second-now.Sub(f.at)).Milliseconds()
			one.AgainMS = &left
		}
		d.Refused = append(d.Refused, one)
	}
	for _, e := range slices.Backward(b.ended) {
		d.Ended = append(d.Ended, endedJSON{No: e.no, Host: e.host, Code: e.code, MS: e.took.Milliseconds(), Size: e.size, Picture: e.picture != nil})
	}
	return d
}
