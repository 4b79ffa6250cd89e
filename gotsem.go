package gotsem

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// Semaphore lets at most so many in at once, per id, across all processes that
// share its store. Its methods are safe for concurrent use.
type Semaphore struct {
	opt     Options
	start   time.Time // instants are kept as durations since then, monotonic
	owner   string
	limits  *limits
	queues  *limits // nil: no QueueFunc
	order   order
	classes classes
	gate    *gate
	line    line
	renewer renewer
	opens   openLeases
	local   *local
	drains  drains
	known   *knownFull // nil: refusals are not believed
	stats   stats

	observing sync.Mutex
	observers atomic.Pointer[[]*Observer] // nil: nobody is told

	stamp    func() string // what slot ids of leases begin with; nil: nothing
	requests sync.Pool     // of *request
	releases sync.Pool     // of *store.Release
	stopWake func()
	waking   sync.Once
	checking sync.Once
	closed   atomic.Bool
	closing  chan struct{} // closed by Close
}

// New makes a semaphore. It does not touch the store yet.
func New(o Options) (*Semaphore, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if st, ok := o.Store.(interface{ Err() error }); ok && st.Err() != nil {
		return nil, fmt.Errorf("gotsem: Options.Store: %w", st.Err())
	}
	s := newSemaphore(o)
	s.limits.must = true
	return s, nil
}

func stampOf(st store.Store) func() string {
	if s, ok := st.(store.Stamper); ok {
		return s.Stamp
	}
	return nil
}

// newSemaphore makes a semaphore from options that are whole and, but for what
// the compatibility API tolerates, valid.
func newSemaphore(o Options) *Semaphore {
	s := &Semaphore{
		opt:     o,
		start:   time.Now(),
		owner:   describe(o.Label),
		stamp:   stampOf(o.Store),
		limits:  newLimits(o.Limit, o.LimitFunc, o.Logger),
		closing: make(chan struct{}),
	}
	s.requests.New = func() any { return new(request) }
	s.releases.New = func() any { return new(store.Release) }
	s.drains.seed = maphash.MakeSeed()
	s.local = newLocal(s)
	hooks := gateHooks{
		timeout: o.StoreTimeout, ttl: o.TTL, grace: o.Grace, log: o.Logger,
		reportFrom: math.MaxInt64, onBack: s.local.storeIsBack, onFree: func(string) {}, observers: &s.observers,
	}
	s.classes = newClasses(o.Classes)
	if o.QueueFunc != nil {
		s.queues = newLimits(0, o.QueueFunc, o.Logger)
	}
	if o.Outage == Local {
		hooks.reportFrom = o.TTL / 2
	}
	if o.KnownFull > 0 {
		s.known = newKnownFull(min(o.KnownFull, store.MaxTTL))
		hooks.onFree = s.known.forget
	}
	s.gate = newGate(o.Store, &s.stats, hooks)
	s.renewer.init(s)
	return s
}

// now is the time since the semaphore was made. It does not jump with the wall
// clock.
func (s *Semaphore) now() time.Duration { return time.Since(s.start) }

// describe says who this process is.
func describe(label string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	d := fmt.Sprintf("%s:%d", host, os.Getpid())
	if label != "" {
		d += " " + label
	}
	return d
}

// listen has the store tell this semaphore whom to wake. It is done when first
// somebody waits or holds a lease: a NewGotsem needs no ear.
func (s *Semaphore) listen() {
	s.waking.Do(func() {
		if w, ok := s.opt.Store.(store.Waker); ok {
			s.stopWake = w.OnWake(s.woken)
		}
	})
	s.checkStore()
}

// checkStore has it said once, when the store is first asked, what is not well with its
// set-up.
func (s *Semaphore) checkStore() {
	s.checking.Do(func() {
		if c, ok := s.opt.Store.(store.Checker); ok && s.opt.Logger.Enabled(context.Background(), slog.LevelWarn) {
			go s.warn(c)
		}
	})
}

// woken is the store's hint that the standing of a slot id changed: a waiter looks
// whether it has its grant, a lease is renewed to see whether it still is one.
func (s *Semaphore) woken(w store.Wakeup) {
	if w.SlotID == "" {
		s.line.wakeAll()
		return
	}
	waiter, waits := s.line.wake(w)
	if !waits || waiter.holds && w.Fence == 0 { // what was taken away may be what it holds
		s.renewer.suspect(w.SlotID)
	}
	if waits {
		s.known.forget(waiter.id) // there was room: what is remembered is not true any more
	}
}

// warn says once what is not well with the store's set-up. It does so from the side:
// nobody waits for it.
func (s *Semaphore) warn(c store.Checker) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-s.closing:
			cancel()
		case <-stop:
		}
	}()
	found, err := c.Check(ctx, s.opt.TTL)
	if err != nil {
		return // an outage is told where it is found
	}
	var bad []string
	for _, f := range found {
		if !f.OK {
			bad = append(bad, f.What+": "+f.Text)
		}
	}
	if len(bad) > 0 {
		s.opt.Logger.Warn("gotsem: the store is not set up as its promises need it (gotsem doctor says more)", "found", strings.Join(bad, "; "))
	}
}

// Close waits for the store for closeTimeout in all: pending releases are sent for
// all but the last closeRest of it, in which what is still under way ends.
const (
	closeTimeout = 2 * time.Second
	closeRest    = closeTimeout / 10
)

// Close ends the semaphore: waiters are answered ErrClosed, leases are released and
// their contexts end, with ErrClosed as their cause. It waits for the store at most 2 s
// in all, and returns at once where nothing is left to release. What the store has not
// taken back by then lapses within one TTL. It leaves the store's client open, and no
// connection of the store's own that is not in use. Closing twice is a no-op.
//
// A semaphore from NewGotsem need not be closed: the connections of one that is not used
// end by themselves within a minute.
func (s *Semaphore) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	close(s.closing)
	whole, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	ctx, stop := context.WithTimeout(whole, closeTimeout-closeRest)
	defer stop()
	// The leases first: those whose server answers are given back while others are
	// waited for.
	s.renewer.close()
	s.opens.close()
	s.line.close(ctx)
	s.renewer.wait(ctx)
	left := s.gate.close(ctx, whole) + int(s.renewer.pending.Load())
	s.waking.Do(func() {}) // no listening from here on
	if s.stopWake != nil {
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.stopWake()
		}()
		select {
		case <-stopped:
		case <-whole.Done(): // a subscription is being connected, and ends when that does
		}
	}
	if c, ok := s.opt.Store.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
	if left > 0 {
		return fmt.Errorf("gotsem: closed, but the store did not take back %d slots: they lapse by themselves within %v", left, s.opt.TTL)
	}
	return nil
}
