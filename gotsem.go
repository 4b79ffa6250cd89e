package gotsem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
)

// Outage is what happens to requests while the store cannot be asked.
type Outage int

const (
	// Local keeps the cap from what this process knows: for one TTL after the
	// last good answer it admits only into slots that it held in the store then;
	// after that into its share, the limit divided by the processes last seen.
	// It is the default.
	Local Outage = iota
	// Open admits, and marks what it admitted (Lease.FailedOpen).
	Open
	// Closed refuses with ErrUnavailable.
	Closed
)

// String returns the policy in a word.
func (o Outage) String() string {
	switch o {
	case Local:
		return "local"
	case Open:
		return "open"
	case Closed:
		return "closed"
	}
	return fmt.Sprintf("Outage(%d)", int(o))
}

// Defaults of Options.
const (
	DefaultTTL          = 30 * time.Second
	DefaultStoreTimeout = 250 * time.Millisecond
)

// MinTTL is the shortest TTL that New takes: below it, renewing in time is luck.
const MinTTL = 200 * time.Millisecond

// Options say what New makes. The zero value is valid but for Limit (or
// LimitFunc). Options are copied; New writes nothing into them.
type Options struct {
	// Store keeps the slots. Nil: a memory store, exact within this process.
	Store store.Store

	// Limit is how many slots each id has. More than store.MaxLimit counts as that, here
	// and from LimitFunc: it is no limit that anybody reaches.
	Limit int

	// LimitFunc is asked for the limit of an id. Its answers are remembered for a
	// minute, for 10,000 ids, and one question at a time is asked per id, at most
	// 500 at once. Zero or less, an error, or no answer within a second: Limit; after
	// an error it is asked again after 5 s. Without a Limit, an id that has no answer is
	// refused with an error that says so.
	LimitFunc func(ctx context.Context, id string) (int, error)

	// TTL is how long a lease lasts without renewal: how long the slots of a
	// crashed process stay taken. It is renewed at about TTL/3. From MinTTL to
	// store.MaxTTL. 0: DefaultTTL.
	TTL time.Duration

	// Queue is how many may wait per id, over all processes. 0: as many as the
	// limit. Negative: nobody waits, and Acquire refuses like Try.
	Queue int

	// Outage is what happens while the store cannot be asked.
	Outage Outage

	// StoreTimeout is the most that a call waits on the store.
	// 0: DefaultStoreTimeout, or half the TTL if that is shorter.
	StoreTimeout time.Duration

	// KnownFull is how long a refusal may be believed without asking the store
	// again. A release by this process, or word from the store, ends it early.
	// 0: not at all.
	KnownFull time.Duration

	// Grace is how long a store that finds it has lost its memory (a fail-over, a
	// restart without data) makes no grants, so that the holders can come forward.
	// 0: TTL + 1 s, which is safe where a deposed primary stops taking writes
	// within a second. Negative: no grace, as under Outage Open; under Outage Local a
	// millisecond, since the pause after an outage needs what keeps the grace.
	Grace time.Duration

	// AsyncRelease has Release return at once: the slot is given back in the
	// background, with the next trip to the store. A Try that follows right after
	// may still find it taken.
	AsyncRelease bool

	// Label says more about this process to whoever lists holders, beside its
	// host and pid. At most 100 bytes.
	Label string

	// Logger is told of outages, of lost leases and of limits that could not be
	// asked for. Nil: nothing is logged.
	Logger *slog.Logger
}

// withDefaults returns o with its gaps filled in.
func (o Options) withDefaults() Options {
	if o.Store == nil {
		o.Store = memstore.New()
	}
	o.TTL = cmp.Or(o.TTL, DefaultTTL)
	o.StoreTimeout = cmp.Or(o.StoreTimeout, max(0, min(DefaultStoreTimeout, o.TTL/2)))
	switch {
	case o.Grace < 0 && o.Outage == Local:
		// The pause in which shares register is kept in the marker, which only calls
		// with a grace look at.
		o.Grace = time.Millisecond
	case o.Grace < 0 || o.Outage == Open:
		o.Grace = 0
	case o.Grace == 0:
		o.Grace = min(o.TTL, store.MaxTTL-time.Second) + time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// validate reports all that is wrong with o, which has its defaults.
func (o Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("gotsem: "+format, args...)) }
	if o.Limit < 0 || o.Limit == 0 && o.LimitFunc == nil {
		bad("Options.Limit is %d: give the number of slots per id, at least 1 (or a LimitFunc)", o.Limit)
	}
	if o.TTL > store.MaxTTL {
		bad("Options.TTL is %v: at most %v", o.TTL, store.MaxTTL)
	}
	if o.Grace > store.MaxTTL {
		bad("Options.Grace is %v: at most %v", o.Grace, store.MaxTTL)
	}
	if v := reflect.ValueOf(o.Store); v.Kind() == reflect.Pointer && v.IsNil() {
		bad("Options.Store is a nil %T: leave it out for a store in memory", o.Store)
	}
	if o.TTL < MinTTL {
		bad("Options.TTL is %v: at least %v, so that a lease can be renewed in time", o.TTL, MinTTL)
	}
	if o.StoreTimeout < 0 || o.StoreTimeout > o.TTL {
		bad("Options.StoreTimeout is %v: between 0 and the TTL (%v), since a lease must outlive the call that asks for it", o.StoreTimeout, o.TTL)
	}
	if o.KnownFull < 0 {
		bad("Options.KnownFull is %v: 0 or more", o.KnownFull)
	}
	if o.Outage < Local || o.Outage > Closed {
		bad("Options.Outage is %d: Local, Open or Closed", int(o.Outage))
	}
	if len(o.Label) > 100 {
		bad("Options.Label has %d bytes: at most 100, every lease carries it", len(o.Label))
	}
	if strings.ContainsRune(o.Label, 0) {
		bad("Options.Label %q contains a NUL: what stands behind it would be lost in Redis", o.Label)
	}
	return errors.Join(errs...)
}

// Semaphore lets at most so many in at once, per id, across all processes that
// share its store. Its methods are safe for concurrent use.
type Semaphore struct {
	opt     Options
	start   time.Time // instants are kept as durations since then, monotonic
	owner   string
	limits  *limits
	guard   *guard
	line    line
	renewer renewer
	opens   openLeases
	local   *local
	drains  drains
	known   *knownFull // nil: refusals are not believed
	stats   stats

	requests sync.Pool // of *request
	releases sync.Pool // of *store.Release
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

// newSemaphore makes a semaphore from options that are whole and, but for what
// the seed's face tolerates, valid.
func newSemaphore(o Options) *Semaphore {
	s := &Semaphore{
		opt:     o,
		start:   time.Now(),
		owner:   describe(o.Label),
		limits:  newLimits(o.Limit, o.LimitFunc, o.Logger),
		closing: make(chan struct{}),
	}
	s.requests.New = func() any { return new(request) }
	s.releases.New = func() any { return new(store.Release) }
	s.guard = newGuard(o.Store, o.StoreTimeout, o.TTL, o.Logger, &s.stats)
	s.guard.grace = o.Grace
	s.drains.seed = maphash.MakeSeed()
	s.renewer.init(s)
	s.local = newLocal(s)
	s.guard.back = s.local.back
	if o.Outage == Local {
		s.guard.least = o.TTL / 2
	}
	if o.KnownFull > 0 {
		s.known = newKnownFull(min(o.KnownFull, store.MaxTTL))
		s.guard.frees = s.known.forget
	}
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
	id, waits := s.line.wake(w)
	if !waits {
		s.renewer.suspect(w.SlotID)
	} else {
		s.known.forget(id) // there was room: what is remembered is not true any more
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

// Close waits for the store for closeTimeout in all: what is owed is given back for all
// but the last closeRest of it, in which that which is still under way ends.
const (
	closeTimeout = 2 * time.Second
	closeRest    = closeTimeout / 10
)

// Close ends the semaphore: waiters are answered ErrClosed, leases are released
// and their contexts end, with ErrClosed as their cause. It waits for the store
// at most 2 s in all, and returns at once where nothing is owed to it. What the store
// has not taken back by then lapses within one TTL. It leaves the store's client open.
// Closing twice is a no-op.
//
// A semaphore from NewGotsem need not be closed.
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
	s.renewer.end()
	s.opens.close()
	s.line.close(ctx)
	s.renewer.wait(ctx)
	left := s.guard.close(ctx, whole) + int(s.renewer.pending.Load())
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
	if left > 0 {
		return fmt.Errorf("gotsem: closed, but the store did not take back %d slots: they lapse by themselves within %v", left, s.opt.TTL)
	}
	return nil
}
