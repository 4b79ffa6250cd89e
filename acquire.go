package gotsem

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// MaxID is the longest id in bytes. An id is often a header or a path that a
// stranger chose, and each byte of it lies in the store several times.
const MaxID = 4096

// Option is a wish of one call of Try, Acquire or Do.
type Option struct {
	weight  int
	maxWait time.Duration
	kind    uint8
}

const (
	optWeight uint8 = iota
	optMaxWait
)

// Weight asks for n slots at once, as one lease. Without it a lease has weight 1.
func Weight(n int) Option { return Option{kind: optWeight, weight: n} }

// MaxWait is the most that Acquire waits in line. When it is over, Acquire
// answers a *FullError that is ErrFull and ErrWaitTooLong. Try never waits. Zero
// or less: not at all.
func MaxWait(d time.Duration) Option { return Option{kind: optMaxWait, maxWait: d} }

// callOptions are the options of one call, put together.
type callOptions struct {
	weight  int
	maxWait time.Duration // math.MaxInt64: as long as ctx allows
}

func callOptionsOf(opts []Option) callOptions {
	w := callOptions{weight: 1, maxWait: math.MaxInt64}
	for _, o := range opts {
		switch o.kind {
		case optWeight:
			w.weight = o.weight
		case optMaxWait:
			w.maxWait = max(0, o.maxWait)
		}
	}
	return w
}

// Try takes a lease if there is room now, and nobody waits for it. It never waits
// in line; it asks the store once, which takes StoreTimeout at most.
//
// No room is a *FullError (ErrFull); ErrTooHeavy, ErrUnavailable (by the outage
// policy), ErrRecovering, ErrClosed and the ctx's own error are the others.
func (s *Semaphore) Try(ctx context.Context, id string, opts ...Option) (*Lease, error) {
	w := callOptionsOf(opts)
	if s.known != nil && !s.closed.Load() && ctx.Err() == nil {
		if full := s.known.full(id, w.weight); full != nil {
			s.stats.refused.Add(1)
			s.stats.knownFull.Add(1)
			return nil, full
		}
	}
	limit, err := s.check(ctx, id, w.weight)
	if err != nil {
		return nil, err
	}
	s.listen()
	r := s.request(id, w.weight, limit)
	defer s.requests.Put(r)
	return s.settle(ctx, &r.Request)
}

// Do runs f with a lease, and releases it when f returns or panics. f's ctx ends
// when ctx does, and when the lease is lost, with a cause that is ErrLeaseLost; like
// Lease.Context it looks at the clock. If the lease was lost before f returned, the error
// is ErrLeaseLost and says why, joined with f's own: others may have run beside f.
func (s *Semaphore) Do(ctx context.Context, id string, f func(ctx context.Context) error, opts ...Option) error {
	lease, err := s.Acquire(ctx, id, opts...)
	if err != nil {
		return err
	}
	defer func() { _ = lease.Release(ctx) }() // what fails here is given back later
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	held := &leaseContext{Context: inner, cancel: cancel, lease: lease}
	stop := context.AfterFunc(lease.Context(), held.look)
	defer stop()
	err = f(held)
	if lease.look(); lease.state.Load() == lost {
		return errors.Join(lease.why.Load(), err)
	}
	return err
}

// check refuses what need not be asked, and finds the limit.
func (s *Semaphore) check(ctx context.Context, id string, weight int) (limit int, err error) {
	if err := s.sensible(ctx, id, weight); err != nil {
		return 0, err
	}
	if int64(weight) > store.MaxWeight {
		return 0, fmt.Errorf("%w: %q: weight %d: at most %d", ErrTooHeavy, id, weight, int64(store.MaxWeight))
	}
	limit, err = s.limits.of(ctx, id)
	if err != nil {
		return 0, fmt.Errorf("gotsem: %q: asking for its limit: %w", id, err)
	}
	return limit, nil
}

// sensible refuses what need not be asked.
func (s *Semaphore) sensible(ctx context.Context, id string, weight int) error {
	switch {
	case s.closed.Load():
		return ErrClosed
	case id == "":
		return errors.New("gotsem: the id is empty: name what is limited, such as a project")
	case len(id) > MaxID:
		return fmt.Errorf("gotsem: the id has %d bytes, at most %d are taken: hash what is longer", len(id), MaxID)
	case weight < 1:
		return fmt.Errorf("gotsem: %q: weight %d: at least 1", id, weight)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("gotsem: %q: %w", id, err)
	}
	return nil
}

// request is what the pool has: a request, and what makes slot ids for those that it is
// used for.
type request struct {
	store.Request
	ids slotIDs
}

// request makes a request with a slot id of its own, from the pool.
func (s *Semaphore) request(id string, weight, limit int) *request {
	r := s.requests.Get().(*request)
	r.Request = store.Request{} // and then field by field, in place: see redisstore's free
	r.ID, r.SlotID, r.Weight, r.Limit = id, r.ids.next(), weight, limit
	r.TTL, r.Owner, r.Grace, r.OutageFor, r.FirstAttempt = s.opt.TTL, s.owner, s.opt.Grace, s.local.unreportedOutage(id), true
	return r
}

// slotID returns one more slot id.
func (s *Semaphore) slotID() string {
	r := s.requests.Get().(*request)
	defer s.requests.Put(r)
	return r.ids.next()
}

// settle asks the store once about a request that does not wait, and turns the
// answer into a lease or an error.
func (s *Semaphore) settle(ctx context.Context, r *store.Request) (*Lease, error) {
	sent, mark := s.now(), s.known.mark(r.ID)
	d, err := s.gate.acquire(ctx, r)
	if err != nil {
		return s.unanswered(ctx, r, err)
	}
	now := s.now()
	s.local.learn(r, d, now)
	if d.Outcome == store.Granted {
		if err := ctx.Err(); err != nil {
			return nil, s.tooLate(r, err)
		}
		lease := s.lease(ctx, r, d, sent)
		if lease.trusted(now) {
			s.keep(lease, now)
			return lease, nil
		}
		// The process stood still for as long as the grant was good.
		s.gate.backlog.add(r.ID, r.SlotID, false)
		return nil, &unavailable{id: r.ID, cause: errors.New("the answer came after its lease was over")}
	}
	err = s.refusal(r, d, 0)
	s.known.learn(err, r.Weight, mark)
	return nil, err
}

// unanswered goes by the outage policy. What the store may have granted is given
// back in the background.
func (s *Semaphore) unanswered(ctx context.Context, r *store.Request, err error) (*Lease, error) {
	s.doubt(ctx, r, err)
	lease, err := s.policy(ctx, r, err)
	if errors.Is(err, ErrUnavailable) {
		s.stats.unavailable.Add(1)
	}
	return lease, err
}

// policy is what the outage policy makes of err: a lease, or err.
func (s *Semaphore) policy(ctx context.Context, r *store.Request, err error) (*Lease, error) {
	if !errors.Is(err, ErrUnavailable) || over(ctx) != nil {
		return nil, err
	}
	switch s.opt.Outage {
	case Open:
		s.stats.failedOpen.Add(1)
		return s.openLease(ctx, r), nil
	case Local:
		if lease := s.local.admit(ctx, r); lease != nil {
			s.stats.local.Add(1)
			return lease, nil
		}
	}
	return nil, err
}

// doubt gives back what the store may have granted without our hearing of it.
func (s *Semaphore) doubt(ctx context.Context, r *store.Request, err error) {
	switch {
	case !asked(err):
	case errors.Is(ctx.Err(), context.Canceled):
		s.withdraw(r.ID, r.SlotID, true, func() {})
	default: // the store has not answered in time: no time is left to wait for it
		s.gate.backlog.add(r.ID, r.SlotID, true)
	}
}

// tooLate gives a grant back that came when the ctx of its call was over already, and
// returns what the call ends with. A ctx that is over wins, whichever came first: its
// end is looked at last, when the grant is at hand. So who ends a ctx and makes room
// then can rely on the room being left to others.
func (s *Semaphore) tooLate(r *store.Request, err error) error {
	s.withdraw(r.ID, r.SlotID, false, func() {})
	return fmt.Errorf("gotsem: %q: granted when its ctx was over, and given back: %w", r.ID, err)
}

// withdrawWait is the most that a call which ends without a lease waits until its place
// or its grant is given back. A round trip is a fraction of that; where one is not, the
// rest is done in the background.
const withdrawWait = 50 * time.Millisecond

// withdraw gives back what the store keeps, or may keep, for a call that wants it no
// more, and waits for that a little: so whoever asks after the call has returned finds
// the room. done is called when it is over, or is left to the backlog.
func (s *Semaphore) withdraw(id, slotID string, inDoubt bool, done func()) {
	given := make(chan struct{})
	go func() {
		defer close(given)
		defer done()
		freed, err := s.gate.release(context.Background(), &store.Release{ID: id, SlotID: slotID, Grace: s.opt.Grace})
		if err != nil || inDoubt && !freed {
			s.gate.backlog.add(id, slotID, inDoubt)
		}
	}()
	timer := time.NewTimer(withdrawWait)
	defer timer.Stop()
	select {
	case <-given:
	case <-timer.C:
	}
}

// asked reports whether a call that ended with err may have reached the store and
// been carried out.
func asked(err error) bool {
	var down *unavailable
	var never *unsent
	return !errors.Is(err, store.ErrConfig) && !errors.As(err, &never) && !(errors.As(err, &down) && down.cause == nil)
}

// refusal turns a decision that is no grant into an error.
func (s *Semaphore) refusal(r *store.Request, d store.Decision, waited time.Duration) error {
	switch d.Outcome {
	case store.TooHeavy:
		s.stats.refused.Add(1)
		s.stats.tooHeavy.Add(1)
		return fmt.Errorf("%w: %q: weight %d, limit %d: no release would make room", ErrTooHeavy, r.ID, r.Weight, d.Limit)
	case store.Recovering:
		s.stats.recovering.Add(1)
		return &RecoveringError{ID: r.ID, RetryAfter: d.RetryIn}
	}
	s.stats.refused.Add(1)
	switch {
	case waited > 0:
		s.stats.waitTooLong.Add(1)
	case d.Outcome == store.LineFull:
		s.stats.queueFull.Add(1)
	}
	full := &FullError{
		ID: r.ID, Active: d.Active, Limit: d.Limit, Waiting: d.Waiting, NextLapse: d.RetryIn,
		line: d.Outcome == store.LineFull, waited: waited,
	}
	full.RetryAfter = s.drains.retryAfter(full, r.Weight, s.opt.TTL, s.now())
	s.drains.want()
	return full
}
