package gotsem

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// gate stands between the semaphore and its store. It tells an outage from an answer,
// and keeps a breaker for each server of the store at which calls fail: while that is
// open, the outage policy answers in the server's stead. What could not be released it
// releases later.
type gate struct {
	gateHooks
	store   store.Store
	parts   store.Partitioner // nil: one server
	joint   store.Joint       // nil: ids are asked for one by one
	stats   *stats
	start   time.Time
	backlog backlog

	onReleased func(id, slotID string, err error) // released, made into a func once

	some  atomic.Int32 // breakers that there are: none while all is well
	downs atomic.Int32 // those of them that are not closed
	swept atomic.Int64 // when those that are not needed were looked for

	mu         sync.RWMutex
	breakers   map[string]*breaker // by server
	complained time.Duration
	closed     chan struct{}
}

// gateHooks are what a gate is told when it is made, and whom it tells. They are all
// set: a gate is whole when it is made.
type gateHooks struct {
	timeout time.Duration // the most that one call may take
	ttl     time.Duration // after it, what was not released has lapsed
	grace   time.Duration // a release may grant the freed room, and goes by the grace as grants do
	log     *slog.Logger

	observers  *atomic.Pointer[[]*Observer]
	reportFrom time.Duration       // an outage that lasted longer is reported to the store
	onBack     func(server string) // called when a server answers again
	onFree     func(id string)     // called when a release is sent, and when it is answered
}

func newGate(st store.Store, stats *stats, hooks gateHooks) *gate {
	// start lies a little back, so that 0 can stand for never.
	g := &gate{
		gateHooks: hooks, store: st, stats: stats, start: time.Now().Add(-2 * logEvery),
		breakers: make(map[string]*breaker), closed: make(chan struct{}),
	}
	g.parts, _ = st.(store.Partitioner)
	g.joint, _ = st.(store.Joint)
	g.backlog.init(g)
	g.onReleased = g.released
	return g
}

// now is never 0, so that 0 can stand for never.
func (g *gate) now() time.Duration { return time.Since(g.start) }

// server names the server that keeps id.
func (g *gate) server(id string) string {
	if g.parts == nil {
		return ""
	}
	return g.parts.Partition(id)
}

// breaker returns the breaker before the server of id, or nil if all is well there.
func (g *gate) breaker(id string) *breaker {
	if g.some.Load() == 0 {
		return nil
	}
	return g.breakerOf(g.server(id))
}

// breakerOf is breaker by the server's name.
func (g *gate) breakerOf(server string) *breaker {
	if g.some.Load() == 0 {
		return nil
	}
	g.sweep()
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.breakers[server]
}

// sweep drops, once in a while, the breakers that have nothing to say any more.
func (g *gate) sweep() {
	now, last := g.now(), g.swept.Load()
	if now-time.Duration(last) < breakerKept || !g.swept.CompareAndSwap(last, int64(now)) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.breakers, func(_ string, b *breaker) bool { return b.forget() })
	g.some.Store(int32(len(g.breakers)))
}

// makeBreaker returns the breaker of server, and makes it if there is none. There is
// one from the first failure on until breakerKept after the last: while all is well, a
// call pays one atomic load for it.
func (g *gate) makeBreaker(server string) *breaker {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.breakers[server]
	if b == nil {
		b = newBreaker(server, breakerHooks{
			now:     g.now,
			probe:   func(id string) (takes, keeps error) { return probeStore(g.store, id, g.timeout, g.grace) },
			log:     g.log,
			timeout: g.timeout,
			least:   g.reportFrom,
			stop:    g.closed,
			opened:  func() { g.stats.outages.Add(1); g.downs.Add(1); g.changed(server, true) },
			closed:  func() { g.downs.Add(-1); g.changed(server, false) },
			back:    g.onBack,
		})
		g.breakers[server] = b
		g.some.Store(int32(len(g.breakers)))
	}
	return b
}

// acquire asks the store for slots. Its error is an *unavailable if the store
// could not be asked, else the ctx's or one that says what is wrong with the
// request or the configuration.
func (g *gate) acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	if err := g.allow(ctx, takes, r.ID); err != nil {
		return store.Decision{}, err
	}
	r.Budget = g.timeout
	began := g.timed()
	d, err := g.store.Acquire(ctx, r)
	g.called(began, "acquire", 1, err)
	r.FirstAttempt = false // from now on the store may hold something for it
	if err == nil && d.Outcome != store.Granted && d.Outcome != store.Waiting {
		// A refusal is no proof that the store can take what it is given.
		if b := g.breaker(r.ID); b != nil {
			b.refused()
		}
		return d, nil
	}
	return d, g.record(ctx, takes, r.ID, err)
}

// acquireAll asks the store for slots of several ids at once, which one server keeps.
func (g *gate) acquireAll(ctx context.Context, rs []*store.Request) ([]store.Decision, error) {
	id := rs[0].ID
	if err := g.allow(ctx, takes, id); err != nil {
		return nil, err
	}
	for _, r := range rs {
		r.Budget = g.timeout
	}
	began := g.timed()
	ds, err := g.joint.AcquireAll(ctx, rs)
	if !errors.Is(err, store.ErrApart) { // then nothing was asked
		g.called(began, "acquire", len(rs), err)
	}
	switch {
	case errors.Is(err, store.ErrApart):
		return nil, err
	case err == nil && ds[len(ds)-1].Outcome != store.Granted:
		if b := g.breaker(id); b != nil {
			b.refused()
		}
		return ds, nil
	}
	return ds, g.record(ctx, takes, id, err)
}

// renew renews slots that one server keeps, each with an error of its own as of
// acquire. It asks whatever the breaker says: what is held must not be lost since it
// was slow to close.
func (g *gate) renew(ctx context.Context, rs []store.Renewal) []store.RenewResult {
	if b := g.breaker(rs[0].ID); b != nil {
		b.wanted()
	}
	bounded, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	began := g.timed()
	out := g.store.Renew(bounded, rs)
	// The batch counts as one call: it was answered if one of them was. An error of one
	// id, or of the set-up, is nobody else's.
	var outage error
	for i := range out {
		switch err := out[i].Err; {
		case err == nil || errors.Is(err, store.ErrMoving): // what ails one id is no outage of its server
			outage = nil
		case errors.Is(err, store.ErrConfig):
			g.complain(rs[i].ID, err)
			continue
		default:
			outage = err
			continue
		}
		break
	}
	g.called(began, "renew", len(rs), outage)
	_ = g.record(ctx, keeps, rs[0].ID, outage) // counted; each renewal has its own error
	return out
}

// call is any other request to the store: looking in, or what an operator does. It is
// sent whatever the breaker says, and how it ends does not count: a big read that takes
// long is no outage.
func (g *gate) call(ctx context.Context, id string, ask func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return &unsent{id, err}
	}
	bounded, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	err := ask(bounded)
	if err == nil {
		if b := g.breaker(id); b != nil {
			b.answeredSomething()
		}
		return nil
	}
	return g.judge(ctx, id, err)
}

// allow says whether the store may be asked: not with a ctx that is over, and
// not while it is known to be down.
func (g *gate) allow(ctx context.Context, k kind, id string) error {
	if err := ctx.Err(); err != nil {
		return &unsent{id, err}
	}
	if b := g.breaker(id); b != nil && !b.allow(k) {
		return &unavailable{id: id, cause: b.why(), unsent: true}
	}
	return nil
}

// record counts how a call ended, and returns the error for the caller.
func (g *gate) record(ctx context.Context, k kind, id string, err error) error {
	if answer(err) {
		if b := g.breaker(id); b != nil {
			b.answered(k)
		}
		return g.judge(ctx, id, err)
	}
	// If the caller's time ran out, that says something about the store only if it is
	// all that happens for as long as a call may take. If the caller gave up, nothing.
	end := over(ctx)
	if end != nil && !errors.Is(end, context.DeadlineExceeded) {
		return g.judge(ctx, id, err)
	}
	g.stats.storeErrors.Add(1)
	// A breaker may be forgotten between the making and the counting: then a new one
	// counts.
	for !g.makeBreaker(g.server(id)).failed(k, id, err, end == nil) {
	}
	return g.judge(ctx, id, err)
}

// answer reports whether a call that ended with err was answered by its server.
func answer(err error) bool {
	return err == nil || errors.Is(err, store.ErrConfig) || errors.Is(err, store.ErrNotReplicated) ||
		errors.Is(err, store.ErrMoving) // what ails one id is no outage of its server
}

// judge returns the error for the caller. A call that failed when its ctx was over
// failed by that, whatever the store says: the caller set the bound. What remains is an
// outage, ErrUnavailable.
func (g *gate) judge(ctx context.Context, id string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrConfig):
		g.complain(id, err)
		return fmt.Errorf("gotsem: %q: %w", id, err)
	case errors.Is(err, store.ErrNotReplicated):
		return fmt.Errorf("gotsem: %q: %w", id, err)
	case errors.Is(err, store.ErrMoving):
		return &unavailable{id: id, cause: err}
	case over(ctx) != nil:
		return fmt.Errorf("gotsem: %q: %w", id, over(ctx))
	}
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

// away reports whether the server of id is known to take no releases, and has it
// probed.
func (g *gate) away(id string) bool {
	b := g.breaker(id)
	if b == nil || b.allow(keeps) {
		return false
	}
	b.wanted()
	return true
}

// silence is for how long the server of id is known to answer nothing at all; 0: it
// answers, or is not known not to.
func (g *gate) silence(id string) time.Duration {
	if b := g.breaker(id); b != nil {
		return b.silence()
	}
	return 0
}

// outage is how long the server of id could not be asked, if it must be told that.
func (g *gate) outage(id string) time.Duration {
	if b := g.breaker(id); b != nil {
		return b.outage()
	}
	return 0
}

// reported says that the server of id was told of its outage.
func (g *gate) reported(id string) {
	if b := g.breaker(id); b != nil {
		b.wasReported()
	}
}

// complain is loud about a configuration error, at most once each logEvery.
func (g *gate) complain(id string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); now-g.complained >= logEvery {
		g.complained = now
		g.log.Error("gotsem: the store refuses: retrying will not help, and it is not treated as an outage", "id", id, "error", err)
	}
}

// close releases what is pending, for as long as ctx allows, and returns how much
// is left. What is under way then is cut off, and may end for as long as whole allows.
func (g *gate) close(ctx, whole context.Context) int {
	left := g.backlog.close(ctx, whole)
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.closed:
	default:
		close(g.closed)
	}
	return left
}
