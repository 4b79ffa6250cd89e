package gotsem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// When the breaker opens, and how it finds out that it may close.
const (
	breakerFailures = 5                      // failures in a row
	breakerFailing  = time.Second            // or nothing but failures for so long
	probeEvery      = 500 * time.Millisecond // while it is open
	probeIdle       = time.Minute            // without a call, probing stops
	logEvery        = time.Second            // a change of state
)

// guard stands between the semaphore and its store. It tells an outage from an
// answer, counts outages, and when there were enough of them answers in the
// store's stead until a probe gets through. What could not be given back it
// gives back later.
type guard struct {
	store   store.Store
	timeout time.Duration // the most one call may take
	grace   time.Duration // what it gives back may be handed on, and handing on is a grant
	log     *slog.Logger
	stats   *stats
	start   time.Time
	later   backlog

	onHanded func(id, slotID string, err error) // handed, made into a func once
	frees    func(id string)                    // told when a release is sent, and when it is answered

	open   atomic.Bool
	streak atomic.Int64 // failures since the last good answer; 0 is the common case
	called atomic.Int64 // while open: when somebody last asked

	mu         sync.Mutex
	failing    time.Duration // when the streak began
	probing    bool
	probeID    string
	logged     time.Duration // how the store stands
	saying     bool          // a line about it is due
	saidDown   bool          // what the last line about it said
	cause      error         // of the latest outage
	lasted     time.Duration // of the latest that ended
	complained time.Duration
	down       time.Duration // when the breaker opened
	closed     chan struct{}

	returns func(outage time.Duration) // called just before the breaker closes
	back    func()                     // and after that
}

func newGuard(st store.Store, timeout, ttl time.Duration, log *slog.Logger, stats *stats) *guard {
	// start lies a little back, so that 0 can stand for never.
	g := &guard{store: st, timeout: timeout, log: log, stats: stats, start: time.Now().Add(-2 * logEvery), closed: make(chan struct{}), frees: func(string) {}}
	g.later.init(g, ttl)
	g.onHanded = g.handed
	return g
}

func (g *guard) now() time.Duration { return time.Since(g.start) }

// acquire asks the store for slots. Its error is an *unavailable if the store
// could not be asked, else the ctx's or one that says what is wrong with the
// request or the configuration.
func (g *guard) acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	if err := g.enter(ctx, r.ID); err != nil {
		return store.Decision{}, err
	}
	r.Budget = g.timeout
	d, err := g.store.Acquire(ctx, r)
	r.Fresh = false
	return d, g.leave(ctx, r.ID, err)
}

// renew renews, each slot with an error of its own as of acquire.
func (g *guard) renew(ctx context.Context, rs []store.Renewal) []store.Renewed {
	if err := g.enter(ctx, rs[0].ID); err != nil {
		out := make([]store.Renewed, len(rs))
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	bounded, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	out := g.store.Renew(bounded, rs)
	var outage error
	for i := range out {
		if out[i].Err != nil && !errors.Is(out[i].Err, store.ErrConfig) && !errors.Is(out[i].Err, store.ErrMoving) {
			outage = out[i].Err
		}
	}
	_ = g.leave(ctx, rs[0].ID, outage) // counted; each renewal has its own error
	return out
}

// release gives back a slot, within r.Budget if it has one.
func (g *guard) release(ctx context.Context, r *store.Release) (bool, error) {
	if err := g.enter(ctx, r.ID); err != nil {
		return false, err
	}
	r.Budget = cmp.Or(r.Budget, g.timeout)
	g.frees(r.ID)
	freed, err := g.store.Release(ctx, r)
	g.frees(r.ID)
	return freed, g.leave(ctx, r.ID, err)
}

// handOver has a slot given back without waiting for it. If the store does not take
// it, it is given back later.
func (g *guard) handOver(r *store.Release) {
	if err := g.enter(context.Background(), r.ID); err != nil {
		g.later.add(r.ID, r.SlotID, false)
		return
	}
	r.Budget = g.timeout
	r.Async = g.onHanded
	g.frees(r.ID)
	_, _ = g.store.Release(context.Background(), r) // it speaks through Async
}

// handed hears how a release ended that was handed over.
func (g *guard) handed(id, slotID string, err error) {
	g.frees(id)
	if g.leave(context.Background(), id, err) != nil {
		g.later.add(id, slotID, false)
	}
}

// call is any other question to the store.
func (g *guard) call(ctx context.Context, id string, ask func(ctx context.Context) error) error {
	if err := g.enter(ctx, id); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	return g.leave(ctx, id, ask(bounded))
}

// unsent is the error of a ctx that was over before the store was asked.
type unsent struct {
	id  string
	err error
}

func (e *unsent) Error() string { return fmt.Sprintf("gotsem: %q: %v", e.id, e.err) }
func (e *unsent) Unwrap() error { return e.err }

// away reports whether the server of id is known to be away, and has it probed.
func (g *guard) away(id string) bool { return g.enter(context.Background(), id) != nil }

// enter says whether the store may be asked: not with a ctx that is over, and
// not while it is known to be down.
func (g *guard) enter(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return &unsent{id, err}
	}
	if !g.open.Load() {
		return nil
	}
	g.called.Store(int64(g.now()))
	g.mu.Lock()
	idle := g.open.Load() && !g.probing
	g.mu.Unlock()
	if idle { // nobody has asked for long: this call is the probe
		return nil
	}
	return &unavailable{id: id}
}

// leave judges how a call ended, and returns the error for the caller.
func (g *guard) leave(ctx context.Context, id string, err error) error {
	switch {
	case err == nil:
		g.answered()
		return nil
	case errors.Is(err, store.ErrConfig):
		g.answered()
		g.complain(id, err)
		return fmt.Errorf("gotsem: %q: %w", id, err)
	case errors.Is(err, store.ErrNotReplicated):
		g.answered()
		return fmt.Errorf("gotsem: %q: %w", id, err)
	case errors.Is(err, store.ErrMoving): // what ails one id is no outage of its server
		g.answered()
		return &unavailable{id: id, cause: err}
	case over(ctx) != nil:
		// The caller's time ran out. That says something about the store only if
		// it is all that happens for as long as a call may take.
		if errors.Is(over(ctx), context.DeadlineExceeded) {
			g.failed(id, err, false)
		}
		return fmt.Errorf("gotsem: %q: %w", id, over(ctx))
	}
	g.failed(id, err, true)
	return &unavailable{id: id, cause: err}
}

// over is ctx.Err, but for the moment in which the deadline of ctx has passed and
// its timer has not run yet: a connection with the same deadline may be quicker.
func over(ctx context.Context) error {
	err := ctx.Err()
	if d, ok := ctx.Deadline(); err == nil && ok && !time.Now().Before(d) {
		err = context.DeadlineExceeded
	}
	return err
}

func (g *guard) answered() {
	if g.streak.Load() != 0 || g.open.Load() {
		g.recovered()
	}
}

// failed counts a failure. A doubtful one is only counted by its time.
func (g *guard) failed(id string, err error, sure bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	g.stats.storeErrors.Add(1)
	if g.streak.Load() == 0 {
		g.failing = now
		g.streak.Store(1)
	} else if sure {
		g.streak.Add(1)
	}
	if g.open.Load() || g.streak.Load() < breakerFailures && now-g.failing < breakerFailing {
		if g.open.Load() {
			g.probe(id)
		}
		return
	}
	g.down = g.failing
	g.open.Store(true)
	g.stats.outages.Add(1)
	g.called.Store(int64(now))
	g.probe(id)
	g.cause = err
	g.announce()
}

// recovered ends the streak, and the outage if there was one.
func (g *guard) recovered() {
	g.mu.Lock()
	g.streak.Store(0)
	wasOpen := g.open.Load()
	if wasOpen {
		g.lasted = g.now() - g.down
		g.returns(g.lasted)
		g.open.Store(false)
		g.announce()
	}
	g.mu.Unlock()
	if wasOpen {
		g.back()
	}
}

// outage is how long the store has been away: since the first call that it did
// not answer.
func (g *guard) outage() time.Duration {
	if !g.open.Load() {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now() - g.down
}

// announce logs how the store stands, unless that is what was logged last: at most
// once each logEvery, so a change that comes too soon is told of a little later. mu is
// held.
func (g *guard) announce() {
	now := g.now()
	if wait := g.logged + logEvery - now; wait > 0 {
		if !g.saying {
			g.saying = true
			time.AfterFunc(wait, func() {
				g.mu.Lock()
				defer g.mu.Unlock()
				g.saying = false
				g.announce()
			})
		}
		return
	}
	down := g.open.Load()
	if down == g.saidDown {
		return
	}
	g.saidDown, g.logged = down, now
	if down {
		g.log.Error("gotsem: store unreachable, going by the outage policy", "error", g.cause)
	} else {
		g.log.Info("gotsem: store answers again", "after", g.lasted.Round(time.Millisecond))
	}
}

// complain is loud about a configuration error, at most once each logEvery.
func (g *guard) complain(id string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); now-g.complained >= logEvery {
		g.complained = now
		g.log.Error("gotsem: the store refuses: asking again will not mend it, and it is not treated as an outage", "id", id, "error", err)
	}
}

// probe starts probing, if nobody does. mu is held.
func (g *guard) probe(id string) {
	if g.probing {
		return
	}
	g.probing, g.probeID = true, cmp.Or(id, probeSlot)
	go g.probes()
}

// probeSlot is never held: releasing it changes nothing, and yet tells whether
// the store takes writes.
const probeSlot = "gotsem-probe"

func (g *guard) probes() {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-g.closed:
		}
		ended := false
		select {
		case <-g.closed:
			ended = true
		default:
		}
		if ended || !g.open.Load() || g.now()-time.Duration(g.called.Load()) > probeIdle {
			break
		}
		ctx, cancel := context.WithTimeout(context.Background(), g.timeout)
		_, err := g.store.Release(ctx, &store.Release{ID: g.probeID, SlotID: probeSlot, Budget: g.timeout, Grace: g.grace})
		cancel()
		if err == nil || errors.Is(err, store.ErrConfig) {
			g.answered()
			break
		}
	}
	g.mu.Lock()
	g.probing = false
	g.mu.Unlock()
}

// close gives back what is owed, for as long as ctx allows, and returns how much
// is left. What is under way then is cut off, and may end for as long as whole allows.
func (g *guard) close(ctx, whole context.Context) int {
	left := g.later.close(ctx, whole)
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.closed:
	default:
		close(g.closed)
	}
	return left
}
