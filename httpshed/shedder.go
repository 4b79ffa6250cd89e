package httpshed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/door"
)

// Shedder lets requests in, and refuses those for which there is no room. It may
// make any number of handlers, which then share what it measures and counts.
type Shedder struct {
	opt     Options
	door    *door.Door
	closes  budget
	answers [reasons]answer
	stats   stats

	lingering   atomic.Int64
	faulted     atomic.Int64 // when a ServerFault was logged, a Duration; 0: never
	queuedBytes atomic.Int64 // bodies read ahead, of requests that wait
}

// maxQueuedBytes bounds the bodies of all requests that wait. Those above it do
// not wait.
const maxQueuedBytes = 64 << 20

// New makes a Shedder. It starts nothing, and needs no closing.
func New(o Options) (*Shedder, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Shedder{opt: o, door: door.New(o.Semaphore, o.Local), closes: budget{perSecond: o.ClosesPerSecond}}
	s.answers = answersOf(o)
	return s, nil
}

// now is the time since the Shedder was made. It does not jump with the wall
// clock.
func (s *Shedder) now() time.Duration { return s.door.Now() }

// Handler returns next behind the semaphore.
//
// A router that sets path values (ByPathValue) has to come before it, and a limit
// in time, such as http.TimeoutHandler, has to be around it: inside, it would give
// the slot back while the work goes on. Give a server with such a limit, or with
// another ResponseWriter without Unwrap in between, a ReadTimeout: no deadline can be
// set for a body there but the server's.
func (s *Shedder) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.opt.Skip != nil && s.opt.Skip(r) {
			s.stats.skipped.Add(1)
			next.ServeHTTP(w, r)
			return
		}
		h, body, v := s.admit(w, r)
		switch {
		case h != nil:
			serve(h, w, r, body, next)
		case s.opt.Shadow:
			s.shadow(r, &v)
			next.ServeHTTP(w, r)
		case v.gone:
			s.stats.gone.Add(1)
			w.WriteHeader(statusClientGone) // nobody reads it but access logs
		default:
			s.refuse(w, r, &v)
		}
	})
}

// statusClientGone is nginx's word for a client that hung up before its answer.
const statusClientGone = 499

// verdict is why a request was not let in.
type verdict struct {
	id     string
	levels int // how many ids the request has
	reason Reason
	err    error             // what the semaphore, Key or Weight said
	full   *gotsem.FullError // the numbers, if it is that
	fleet  door.Standing     // ServerFull: how the fleet stands
	gone   bool              // the client hung up
}

// admit finds out who asks and takes the slots. Body is what was read ahead of the
// request's body, nil if nothing was.
func (s *Shedder) admit(w http.ResponseWriter, r *http.Request) (h *door.Held, body io.ReadCloser, v verdict) {
	a, err := s.who(r)
	if err != nil {
		return nil, nil, s.notAccepted(err)
	}
	ctx, patience := r.Context(), s.opt.Wait
	if s.opt.Shadow {
		patience = 0
	}
	if patience > 0 && unread(r) {
		// The body is read only if there is something to wait for.
		began := s.now()
		h, v = s.take(ctx, a, 0)
		if v.full == nil { // let in, or refused for what waiting does not mend
			return h, nil, v
		}
		var gone bool
		if body, gone = s.readAhead(w, r, patience); body == nil {
			v.gone = gone
			return nil, nil, v
		}
		defer s.queuedBytes.Add(-s.reservation(r))
		patience -= s.now() - began
	}
	h, v = s.take(ctx, a, patience)
	return h, body, v
}

// who returns what is limited and how much of it the request takes.
func (s *Shedder) who(r *http.Request) (a door.Asker, err error) {
	a.ID, err = s.opt.Key(r)
	switch {
	case err != nil:
		return a, err
	case a.ID == "":
		return a, errEmptyID
	case len(a.ID) > gotsem.MaxID:
		return a, errLongID
	}
	a.Weight = 1
	if s.opt.Weight != nil {
		if a.Weight, err = s.opt.Weight(r); err == nil && a.Weight < 1 {
			err = errWeight
		}
	}
	if err == nil && s.opt.Also != nil {
		a.Also = s.opt.Also(r)
	}
	if err == nil && s.opt.Class != nil {
		class := s.opt.Class(r)
		a.Class = &class
	}
	return a, err
}

// notAccepted is the verdict over a request that Key or Weight did not accept.
func (s *Shedder) notAccepted(err error) verdict {
	var chosen *StatusError
	if !errors.As(err, &chosen) || chosen.Status < 500 || chosen.Status > 599 {
		return verdict{reason: BadRequest, err: err}
	}
	now := s.now()
	if last := s.faulted.Load(); (last == 0 || now-time.Duration(last) >= faultEvery) && s.faulted.CompareAndSwap(last, int64(max(now, 1))) {
		log := s.opt.Logger
		if log == nil {
			log = slog.Default()
		}
		log.Error("httpshed: requests are answered "+strconv.Itoa(chosen.Status)+", since their id or weight cannot be told; more of these are not logged for a minute",
			"error", err, "so far", s.stats.refused[ServerFault].Load()+1)
	}
	return verdict{reason: ServerFault, err: err}
}

// faultEvery is how often a fault of this server is logged at most.
const faultEvery = time.Minute

var (
	errEmptyID = errors.New("httpshed: Key returned an empty id: it is not taken for one, since all who lack an id would share it")
	errLongID  = errors.New("httpshed: Key returned an id longer than gotsem.MaxID: hash what is longer")
	errWeight  = errors.New("httpshed: Weight returned less than 1")
)

// take takes the slots.
func (s *Shedder) take(ctx context.Context, a door.Asker, patience time.Duration) (*door.Held, verdict) {
	h, atLocal, err := s.door.Take(ctx, a, patience)
	switch {
	case err == nil:
		return h, verdict{}
	case atLocal:
		return nil, s.localVerdict(ctx, a, err)
	}
	return nil, s.judge(ctx, a, err)
}

// judge turns what a semaphore said into a verdict.
func (s *Shedder) judge(ctx context.Context, a door.Asker, err error) verdict {
	v := verdict{id: a.ID, levels: 1 + len(a.Also), err: err, reason: Unavailable}
	switch e := err.(type) {
	case *gotsem.FullError:
		v.full = e
		switch {
		case e.Is(gotsem.ErrQueueFull):
			v.reason = LineFull
		case e.Is(gotsem.ErrWaitTooLong):
			v.reason = WaitedTooLong
		default:
			v.reason = Full
		}
		return v
	case *gotsem.RecoveringError:
		v.reason = Recovering
		return v
	}
	switch over := ctx.Err(); {
	case errors.Is(err, gotsem.ErrTooHeavy):
		v.reason = TooHeavy
	case errors.Is(err, gotsem.ErrUnavailable) && !errors.Is(over, context.Canceled):
	case errors.Is(over, context.DeadlineExceeded): // the handler's own time limit, not the client
		v.reason = WaitedTooLong
	case over != nil:
		v.gone = true
	case errors.Is(err, gotsem.ErrOrder), errors.Is(err, gotsem.ErrIDs):
		said := StatusError{Status: http.StatusInternalServerError, Text: problemOf(ServerFault, s.opt).Title}
		return s.notAccepted(fmt.Errorf("%w: %w", &said, err)) // the client is not told which ids
	}
	return v
}

// localVerdict is judge for Options.Local.
func (s *Shedder) localVerdict(ctx context.Context, a door.Asker, err error) verdict {
	v := s.judge(ctx, a, err)
	if v.full == nil {
		return v
	}
	var usage gotsem.Usage
	if v.fleet, usage = s.door.Standing(ctx, a.ID, a.Weight); v.fleet != door.Full {
		v.reason = ServerFull
		return v
	}
	// Then no other server would do, and the fleet's numbers count.
	v.reason = Full
	v.full = &gotsem.FullError{ID: a.ID, Active: usage.Active, Limit: usage.Limit, Waiting: usage.Waiting, NextLapse: usage.NextIn}
	v.err = v.full
	return v
}

// unread reports whether r has a body that has to be read before net/http notices
// that the client hung up, or takes the next request. HTTP/2 has no such thing.
func unread(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
}

// reservation is how much of maxQueuedBytes a request's body counts for.
func (s *Shedder) reservation(r *http.Request) int64 {
	if r.ContentLength >= 0 {
		return r.ContentLength
	}
	return s.opt.QueueBody
}

// readAhead reads the body of a request that is to wait. It returns nil if the
// body is too large, took longer than patience, or (gone) its client hung up. Else
// the body counts for its reservation.
func (s *Shedder) readAhead(w http.ResponseWriter, r *http.Request, patience time.Duration) (_ io.ReadCloser, gone bool) {
	size := s.reservation(r)
	if size > s.opt.QueueBody || size == 0 {
		return nil, false
	}
	taken := false
	defer func() {
		if !taken {
			s.queuedBytes.Add(-size)
		}
	}()
	if s.queuedBytes.Add(size) > maxQueuedBytes {
		return nil, false
	}
	var data []byte
	var err error
	if http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience)) == nil {
		data, err = io.ReadAll(io.LimitReader(r.Body, size+1))
	} else {
		data, err, taken = s.readAside(r, size, patience)
	}
	switch {
	case err != nil:
		return nil, errors.Is(r.Context().Err(), context.Canceled) && !errors.Is(err, os.ErrDeadlineExceeded)
	case int64(len(data)) > size:
		return nil, false
	}
	taken = true
	return io.NopCloser(bytes.NewReader(data)), false
}

// readAside reads up to size bytes and one more of a body whose reading cannot be
// given a deadline: http.TimeoutHandler, and any ResponseWriter without Unwrap, hides
// the connection. It is read on a goroutine of its own, which is left behind (still)
// when it takes longer than patience. That one ends, and gives the reservation back,
// with the client's next bytes, its hanging up, or the server's ReadTimeout.
func (s *Shedder) readAside(r *http.Request, size int64, patience time.Duration) (_ []byte, err error, still bool) {
	type result struct {
		data     []byte
		err      error
		panicked any
	}
	read := make(chan result, 1)
	var over atomic.Bool // one of the two was done; the other gives the reservation back
	body := r.Body
	go func() {
		var res result
		defer func() {
			res.panicked = recover() // it is the request's, not the process's
			read <- res
			if over.Swap(true) {
				s.queuedBytes.Add(-size)
			}
		}()
		res.data, res.err = io.ReadAll(io.LimitReader(body, size+1))
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case res := <-read:
		if res.panicked != nil {
			panic(res.panicked)
		}
		return res.data, res.err, false
	case <-timer.C:
		err = os.ErrDeadlineExceeded
	case <-r.Context().Done():
		err = r.Context().Err()
	}
	return nil, err, !over.Swap(true)
}
