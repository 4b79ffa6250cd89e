package gotsem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// MaxID is the longest id in bytes. An id is often a header or a path that a
// stranger chose, and each byte of it lies in the store several times.
const MaxID = 4096

// Try takes a lease if there is room now, and nobody waits for it. It never waits
// in line; it asks the store once, which takes StoreTimeout at most.
//
// No room is a *FullError (ErrFull); ErrTooHeavy, ErrUnavailable (by the outage
// policy), ErrRecovering, ErrClosed and the ctx's own error are the others.
func (s *Semaphore) Try(ctx context.Context, id string, opts ...Option) (*Lease, error) {
	seen := s.see()
	lease, err := s.tryOf(ctx, id, callOptionsOf(opts), seen)
	if seen != nil {
		s.answered(ctx, seen, id, opts, lease, err)
	}
	return lease, err
}

func (s *Semaphore) tryOf(ctx context.Context, id string, c callOptions, seen *observation) (*Lease, error) {
	if c.also != nil {
		return s.acquireAll(ctx, id, c, false, seen)
	}
	limit, err := s.admissible(ctx, id, c, true)
	if err != nil {
		return nil, err
	}
	s.listen()
	r := s.request(id, c.weight, limit)
	defer s.requests.Put(r)
	s.classify(&r.Request, c)
	return s.try(ctx, r)
}

// Acquire takes a lease, and waits in line for it while there is no room: first
// come, first served over all processes, for as long as ctx and MaxWait allow.
// The line is bounded by Options.Queue.
//
// With the line full the error is a *FullError that is ErrQueueFull; after
// MaxWait one that is ErrFull and ErrWaitTooLong, or ErrUnavailable if the store did
// not answer. ErrTooHeavy, ErrUnavailable (by the outage policy, at once), ErrClosed
// and the ctx's own error are the others.
//
// A ctx that is over wins: nothing is acquired with it, and a grant that comes when it
// is over is released. The place in line, or that grant, is released before Acquire
// returns, for which it waits 50 ms at most; a store that takes longer, or has not
// answered by the ctx's deadline, is left to the background, and until then a Try may
// still find the place.
//
// A wait costs the store one poll a second, and one request when it is over. A lease
// granted by wake-up is provisional: trusted for [store.Claim] since the last poll, and
// renewed within 20 ms unless released first. Until then [Lease.Expires] says no later.
func (s *Semaphore) Acquire(ctx context.Context, id string, opts ...Option) (*Lease, error) {
	seen := s.see()
	lease, err := s.acquireOf(ctx, id, callOptionsOf(opts), seen)
	if seen != nil {
		s.answered(ctx, seen, id, opts, lease, err)
	}
	return lease, err
}

func (s *Semaphore) acquireOf(ctx context.Context, id string, c callOptions, seen *observation) (*Lease, error) {
	if c.also != nil {
		return s.acquireAll(ctx, id, c, c.maxWait > 0, seen)
	}
	limit, err := s.admissible(ctx, id, c, false)
	if err != nil {
		return nil, err
	}
	queue, err := s.queueOf(ctx, id, limit, 0)
	if err != nil {
		return nil, err
	}
	s.listen()
	r := s.request(id, c.weight, limit)
	defer s.requests.Put(r)
	if queue > 0 && c.maxWait > 0 {
		r.Queue, r.seen = queue, seen
		s.classify(&r.Request, c)
		return s.wait(ctx, r, c.maxWait)
	}
	s.classify(&r.Request, c)
	return s.try(ctx, r)
}

// queueOf is how many may wait for an id with that limit, which stands at that place in
// its call; zero or less: nobody.
func (s *Semaphore) queueOf(ctx context.Context, id string, limit, at int) (int, error) {
	switch {
	case s.opt.Queue < 0:
		return 0, nil
	case s.queues != nil:
		if n, err := s.queues.get(ctx, id); err != nil || n > 0 {
			return n, err
		}
	}
	switch {
	case at > 0:
		return bounded(max(s.opt.Queue, furtherQueue)), nil
	case s.opt.Queue == 0:
		return max(limit, 1), nil
	}
	return bounded(s.opt.Queue), nil
}

// Do runs f with a lease, and releases it when f returns or panics. f's ctx ends when
// ctx does, and when the lease is lost, with a cause that is ErrLeaseLost; like
// Lease.Context it looks at the clock. If the lease was lost before f returned, the
// error is ErrLeaseLost and says why, joined with f's own: others may have run beside
// f.
func (s *Semaphore) Do(ctx context.Context, id string, f func(ctx context.Context) error, opts ...Option) error {
	lease, err := s.Acquire(ctx, id, opts...)
	if err != nil {
		return err
	}
	defer func() { _ = lease.Release(ctx) }() // what fails here is released later
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

// admissible refuses what the store need not be asked about, and finds the limit of id.
// With known, what was refused a moment ago is refused again.
func (s *Semaphore) admissible(ctx context.Context, id string, c callOptions, known bool) (limit int, err error) {
	weight := c.weight
	if err := s.sensible(ctx, id, weight); err != nil {
		return 0, err
	}
	if !c.class.Known() {
		return 0, fmt.Errorf("gotsem: %q: As(%d): there are Sheddable, Batch, Default and Critical", id, int(c.class))
	}
	if int64(weight) > store.MaxWeight {
		return 0, fmt.Errorf("%w: %q: weight %d: at most %d", ErrTooHeavy, id, weight, int64(store.MaxWeight))
	}
	if known && s.known != nil {
		if full := s.known.full(id, weight, s.shareOf(c)); full != nil {
			s.stats.refused.Add(1)
			s.stats.knownFull.Add(1)
			return 0, full
		}
	}
	limit, err = s.limits.get(ctx, id)
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
		return fmt.Errorf("%w: the id is empty: name what is limited, such as a project", ErrIDs)
	case len(id) > MaxID:
		return fmt.Errorf("%w: the id has %d bytes, at most %d are taken: hash what is longer", ErrIDs, len(id), MaxID)
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
	ids  slotIDs
	mark uint64       // of the known refusals, when the store was asked last
	seen *observation // of a call that is observed
	part *severalCall // the call for several ids that this is a part of; nil: it is one of its own
}

// request makes a request with a slot id of its own, from the pool.
func (s *Semaphore) request(id string, weight, limit int) *request {
	r := s.plainRequest(id, weight, limit)
	r.SlotID = s.leaseID(&r.ids)
	return r
}

// leaseID returns one more slot id of a lease: stamped, where the store wants that.
func (s *Semaphore) leaseID(ids *slotIDs) string {
	if s.stamp == nil {
		return ids.next()
	}
	return ids.nextStamped(s.now(), s.stamp)
}

// plainRequest is request for TryAcquire, whose slot ids are short. It has none yet.
func (s *Semaphore) plainRequest(id string, weight, limit int) *request {
	r := s.requests.Get().(*request)
	r.seen = nil
	r.Request = store.Request{} // and then field by field, in place: see redisstore's free
	r.ID, r.Weight, r.Limit = id, weight, limit
	r.TTL, r.Owner, r.Grace, r.FirstAttempt = s.opt.TTL, s.owner, s.opt.Grace, true
	return r
}

// slotID returns one more slot id.
func (s *Semaphore) slotID() string {
	r := s.requests.Get().(*request)
	defer s.requests.Put(r)
	return s.leaseID(&r.ids)
}

// ask asks the store for r. It is the one way in which Try, Acquire and TryAcquire ask;
// what an answer teaches is learned here. What an error means, the outage policy says.
func (s *Semaphore) ask(ctx context.Context, r *request) (store.Decision, error) {
	r.OutageFor = s.local.unreportedOutage(r.ID)
	r.mark = s.known.mark(r.ID)
	d, err := s.gate.acquire(ctx, &r.Request)
	if err != nil {
		return store.Decision{}, err
	}
	s.local.learn(&r.Request, d)
	return d, nil
}

// askOnce is ask for a request that does not wait: what the store may have granted
// without the caller's having it is released. A ctx that is over wins, whichever came
// first: its end is looked at last, when the grant is at hand. So who ends a ctx and
// makes room then can rely on the room being left to others.
func (s *Semaphore) askOnce(ctx context.Context, r *request) (store.Decision, error) {
	d, err := s.ask(ctx, r)
	if err != nil {
		s.releaseInDoubt(ctx, r, err)
		return d, err
	}
	if over := ctx.Err(); d.Outcome == store.Granted && over != nil {
		s.withdraw(r.ID, r.SlotID, false, func() {})
		err = tooLate(r, over)
	}
	return d, err
}

// try asks the store once, and turns the answer into a lease or an error.
func (s *Semaphore) try(ctx context.Context, r *request) (*Lease, error) {
	sent := s.now()
	d, err := s.askOnce(ctx, r)
	if err != nil {
		lease, err := s.policy(ctx, r, err)
		return lease, s.turnedAway(err)
	}
	if d.Outcome != store.Granted {
		return nil, s.refusal(r, d, 0)
	}
	lease := s.newLease(ctx, &r.Request, byStore, d, sent)
	lease.part = r.part != nil
	now := s.now()
	if !lease.trusted(now) { // the process stood still for as long as the grant was good
		s.gate.backlog.add(r.ID, r.SlotID, false)
		return nil, s.turnedAway(&unavailable{id: r.ID, cause: errStale})
	}
	s.keep(lease, now)
	return lease, nil
}

var errStale = errors.New("the answer came after its lease was over")

// tooLate is the error of a grant that came when the ctx of its call was over already.
func tooLate(r *request, over error) error {
	return fmt.Errorf("gotsem: %q: granted when its ctx was over, and released: %w", r.ID, over)
}

// releaseInDoubt releases what the store may have granted without our hearing of it.
func (s *Semaphore) releaseInDoubt(ctx context.Context, r *request, err error) {
	switch {
	case !mayHaveArrived(err):
	case errors.Is(ctx.Err(), context.Canceled):
		s.withdraw(r.ID, r.SlotID, true, func() {})
	default: // the store has not answered in time: no time is left to wait for it
		s.gate.backlog.add(r.ID, r.SlotID, true)
	}
}

// withdrawWait is the most that a call which ends without a lease waits until its place
// or its grant is released. A round trip is a fraction of that; where one is not, the
// rest is done in the background.
const withdrawWait = 50 * time.Millisecond

// withdraw releases what the store keeps, or may keep, for a call that wants it no
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

// countRefusal counts a decision that is no grant, after a wait if there was one.
func (s *Semaphore) countRefusal(d store.Decision, waited time.Duration) {
	if d.Outcome == store.Recovering {
		s.stats.recovering.Add(1)
		return
	}
	s.stats.refused.Add(1)
	switch {
	case d.Outcome == store.TooHeavy:
		s.stats.tooHeavy.Add(1)
	case waited > 0:
		s.stats.waitTooLong.Add(1)
	case d.Outcome == store.LineFull:
		s.stats.queueFull.Add(1)
	}
}

// refusal counts a decision that is no grant, and turns it into an error, which is
// remembered unless it took a wait to come to it.
func (s *Semaphore) refusal(r *request, d store.Decision, waited time.Duration) error {
	s.countRefusal(d, waited)
	switch d.Outcome {
	case store.TooHeavy:
		return fmt.Errorf("%w: %q: weight %d, limit %d: no release would make room", ErrTooHeavy, r.ID, r.Weight, store.ShareOf(d.Limit, r.Share))
	case store.Recovering:
		return &RecoveringError{ID: r.ID, RetryAfter: d.RetryIn}
	}
	full := &FullError{
		ID: r.ID, Active: d.Active, Limit: store.ShareOf(d.Limit, r.Share), Waiting: d.Waiting, NextLapse: d.RetryIn,
		line: d.Outcome == store.LineFull, waited: waited,
	}
	full.RetryAfter = s.drains.retryAfter(full, r.Weight, s.opt.TTL, s.now())
	s.drains.want()
	if waited == 0 {
		s.known.learn(full, r.Weight, r.Share, r.mark)
	}
	return full
}
