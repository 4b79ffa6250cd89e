package gotsem

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// Observer is told what happens, on the goroutine on which it happens: it must not block,
// and its panics are the caller's. Fields that are nil are skipped. What Stats counts is
// read there: hooks are for how long things take, and for traces.
type Observer struct {
	// Answered is called once for each Try, Acquire and TryAcquire, when its answer is
	// known. ctx is the call's.
	Answered func(ctx context.Context, a Answer)

	// Ended is called once for each lease. ctx has the values of the one that it was
	// acquired with.
	Ended func(ctx context.Context, e End)

	// Called is called once for each call to the store that acquires, renews or releases.
	Called func(c Call)

	// Store is called when a server of the store is given up, and when it is back.
	Store func(c StoreChange)
}

// Answer is how a call ended.
type Answer struct {
	ID      string   // the first of its ids
	IDs     []string // all of them, where there are several
	Level   int      // a refusal: the place among them of the id that refused
	Class   Class
	Weight  int
	Outcome Outcome
	Source  Source
	Err     error // what the call returned; TryAcquire returns none

	Began  time.Time
	Waited time.Duration // from then to the answer
	Queued bool          // it stood in line
	Place  int           // in line, when it joined; 0: it did not

	// The numbers of a refusal, as in FullError; of a grant of TryAcquire, Active and Limit.
	Active, Limit, Waiting int

	Fence uint64 // of the lease
}

// End is how a lease ended.
type End struct {
	ID     string
	IDs    []string // all of them, where there are several
	Weight int
	Held   time.Duration // 0: not known, as of one that an outage policy admitted
	Why    Why
	Fence  uint64
}

// Call is one call to the store.
type Call struct {
	Operation string // "acquire", "renew", "release"
	Slots     int    // that it was about
	Took      time.Duration
	Err       error // it was not answered, or not well
}

// ErrorType names Err as metrics do, by a word of a closed set: "" for none, "timeout",
// "canceled" (the caller's ctx), "config" (asking again mends nothing), "not_replicated",
// "moving" (a Cluster moves the id), and "error" for all else, such as a server that is
// not there.
func (c Call) ErrorType() string {
	switch {
	case c.Err == nil:
		return ""
	case errors.Is(c.Err, store.ErrConfig):
		return "config"
	case errors.Is(c.Err, store.ErrNotReplicated):
		return "not_replicated"
	case errors.Is(c.Err, store.ErrMoving):
		return "moving"
	case errors.Is(c.Err, context.Canceled):
		return "canceled"
	case errors.Is(c.Err, context.DeadlineExceeded):
		return "timeout"
	}
	if timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](c.Err); ok && timeout.Timeout() {
		return "timeout"
	}
	return "error"
}

// StoreChange is a change of a server of the store.
type StoreChange struct {
	Server string // as store.Partitioner names it; "": there is one
	Down   bool   // it is given up: the outage policy answers in its stead
}

// Outcome is what a call came to.
type Outcome uint8

// The outcomes.
const (
	Granted         Outcome = iota
	Full                    // ErrFull
	LineFull                // ErrQueueFull
	WaitedTooLong           // ErrWaitTooLong
	TooHeavy                // ErrTooHeavy
	GaveUp                  // its ctx was over
	Unavailable             // ErrUnavailable
	Recovering              // ErrRecovering
	NotReplicated           // ErrNotReplicated
	SemaphoreClosed         // ErrClosed
	Invalid                 // what was asked for makes no sense, or the store is misconfigured
	outcomes
)

// String returns the outcome as metrics name it.
func (o Outcome) String() string {
	if o >= outcomes {
		return "unknown"
	}
	return [outcomes]string{"granted", "full", "line_full", "waited_too_long", "too_heavy", "gave_up", "unavailable", "recovering", "not_replicated", "closed", "invalid"}[o]
}

// Source is who answered.
type Source uint8

// The sources.
const (
	FromStore  Source = iota
	FromMemory        // a refusal that was remembered: Options.KnownFull
	FromLocal         // Outage Local
	FromOpen          // Outage Open
)

// String returns the source as metrics name it.
func (s Source) String() string {
	if s > FromOpen {
		return "unknown"
	}
	return [...]string{"store", "memory", "local", "open"}[s]
}

// Why is why a lease ended.
type Why uint8

// The reasons.
const (
	Released  Why = iota
	Lapsed        // it could not be renewed in time
	Revoked       // by Revoke or Clear
	Forgotten     // the store did not know it any more
	Late          // the store put it back after its time was over
	TooLong       // it was held for longer than MaxHold
	ByClose       // Close
)

// String returns the reason as metrics name it.
func (w Why) String() string {
	if w > ByClose {
		return "unknown"
	}
	return [...]string{"released", "lapsed", "revoked", "forgotten", "late", "held_too_long", "closed"}[w]
}

// Observe has o told what happens from now on, beside those who are told already, until
// stop is called. While nobody is told, a call pays one atomic load for it.
func (s *Semaphore) Observe(o *Observer) (stop func()) {
	own := *o // its address is who it is
	s.changeObservers(func(all []*Observer) []*Observer { return append(all, &own) })
	return func() {
		s.changeObservers(func(all []*Observer) []*Observer {
			return slices.DeleteFunc(all, func(other *Observer) bool { return other == &own })
		})
	}
}

func (s *Semaphore) changeObservers(change func([]*Observer) []*Observer) {
	s.observing.Lock()
	defer s.observing.Unlock()
	var all []*Observer
	if old := s.observers.Load(); old != nil {
		all = slices.Clone(*old)
	}
	if all = change(all); len(all) == 0 {
		s.observers.Store(nil)
		return
	}
	s.observers.Store(&all)
}

// observation is what is noted of a call on its way, for those who are told how it ended. A
// nil one is not observed.
type observation struct {
	began time.Time
	place int // in line; 0: it did not stand there
}

// see begins to note a call, if anybody is told.
func (s *Semaphore) see() *observation {
	if s.observers.Load() == nil {
		return nil
	}
	return &observation{began: time.Now()}
}

// stood notes that the call stands in line.
func (g *observation) stood(place int) {
	if g != nil && g.place == 0 {
		g.place = max(place, 1)
	}
}

// answered tells how a call for leases ended.
func (s *Semaphore) answered(ctx context.Context, g *observation, id string, opts []Option, lease *Lease, err error) {
	all := s.observers.Load()
	if g == nil || all == nil {
		return
	}
	c := callOptionsOf(opts)
	a := Answer{ID: id, Class: c.class, Weight: c.weight, Err: err, Outcome: outcomeOf(err)}
	for _, o := range c.also {
		if a.IDs == nil {
			a.IDs = append(make([]string, 0, 1+len(c.also)), id)
		}
		a.IDs = append(a.IDs, o.id)
	}
	if full, ok := errors.AsType[*FullError](err); ok {
		a.Level, a.Active, a.Limit, a.Waiting = full.Level, full.Active, full.Limit, full.Waiting
		if full.known {
			a.Source = FromMemory
		}
	}
	if lease != nil {
		a.Fence, a.Limit = lease.fence, lease.limit
		switch {
		case lease.FailedOpen():
			a.Source = FromOpen
		case lease.basis.Load() == byLocal:
			a.Source = FromLocal
		}
	}
	s.tell(ctx, all, g, a)
}

func (s *Semaphore) tell(ctx context.Context, all *[]*Observer, g *observation, a Answer) {
	a.Began, a.Waited, a.Place, a.Queued = g.began, time.Since(g.began), g.place, g.place > 0
	for _, o := range *all {
		if o.Answered != nil {
			o.Answered(ctx, a)
		}
	}
}

// answeredPlain tells how a TryAcquire ended.
func (s *Semaphore) answeredPlain(ctx context.Context, g *observation, id string, r AcquireResult, err error) {
	all := s.observers.Load()
	if g == nil || all == nil {
		return
	}
	a := Answer{ID: id, Weight: 1, Active: r.Active, Limit: r.Max, Outcome: Full}
	switch {
	case r.FailedOpen():
		a.Outcome, a.Source = Granted, FromOpen
	case r.Acquired:
		a.Outcome = Granted
	case err != nil:
		a.Outcome = outcomeOf(err)
	}
	s.tell(ctx, all, g, a)
}

// outcomeOf is the outcome of a call that returned err.
func outcomeOf(err error) Outcome {
	if err == nil {
		return Granted
	}
	if full, ok := errors.AsType[*FullError](err); ok {
		switch {
		case full.line:
			return LineFull
		case full.waited > 0:
			return WaitedTooLong
		}
		return Full
	}
	for _, one := range []struct {
		is error
		o  Outcome
	}{
		{ErrTooHeavy, TooHeavy}, {ErrRecovering, Recovering}, {ErrNotReplicated, NotReplicated}, {ErrClosed, SemaphoreClosed},
		{store.ErrConfig, Invalid}, {ErrUnavailable, Unavailable}, {context.Canceled, GaveUp}, {context.DeadlineExceeded, GaveUp},
	} {
		if errors.Is(err, one.is) {
			return one.o
		}
	}
	return Invalid
}

// tellEnd tells how a lease ended.
func (l *Lease) tellEnd() { l.tellEndAs(l) }

// tellEndAs tells how a lease ended that did so at one of its ids.
func (l *Lease) tellEndAs(at *Lease) {
	all := l.sem.observers.Load()
	if all == nil {
		return
	}
	e := End{ID: l.id, Weight: l.weight, Fence: l.fence}
	if with := l.with.Load(); with != nil {
		e.IDs = l.IDs()
		e.Held = l.sem.now() - with.since
	} else if l.since > 0 {
		e.Held = l.sem.now() - l.since
	}
	switch at.state.Load() {
	case ended:
		e.Why = ByClose
	case lost:
		e.Why = Forgotten
		if lost := at.why.Load(); lost != nil {
			e.Why = [...]Why{expired: Lapsed, restoredLate: Late, revoked: Revoked, forgotten: Forgotten, heldTooLong: TooLong}[lost.reason]
		}
	}
	l.mu.Lock()
	ctx := context.WithoutCancel(l.parent)
	l.mu.Unlock()
	for _, o := range *all {
		if o.Ended != nil {
			o.Ended(ctx, e)
		}
	}
}

// timed is when a call to the store began, if anybody is told of it; else 0.
func (g *gate) timed() time.Duration {
	if g.observers.Load() == nil {
		return 0
	}
	return g.now()
}

// called tells of a call to the store that began then.
func (g *gate) called(began time.Duration, operation string, slots int, err error) {
	all := g.observers.Load()
	if all == nil || began == 0 {
		return
	}
	c := Call{Operation: operation, Slots: slots, Took: g.now() - began, Err: err}
	for _, o := range *all {
		if o.Called != nil {
			o.Called(c)
		}
	}
}

// changed tells that a server was given up, or is back.
func (g *gate) changed(server string, down bool) {
	all := g.observers.Load()
	if all == nil {
		return
	}
	for _, o := range *all {
		if o.Store != nil {
			o.Store(StoreChange{Server: server, Down: down})
		}
	}
}
