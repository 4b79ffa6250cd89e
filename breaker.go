package gotsem

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// When a breaker opens, and how it finds out that it may close.
const (
	breakerFailures = 5                      // failures in a row
	breakerFailing  = time.Second            // or nothing but failures for so long
	probeEvery      = 500 * time.Millisecond // while something fails
	probeIdle       = time.Minute            // without a call, probing stops
	logEvery        = time.Second            // a change of state
	breakerKept     = time.Minute            // after its last failure
)

// kind is what a call needs of a server.
type kind uint8

const (
	keeps kind = iota // renew, release: needs no memory
	takes             // acquire: needs what the others need, and memory
	kinds
)

// breaker stands before one server of the store: what fails together. It is made when a
// call first fails there.
//
//	        5 failures in a row, or 1 s of nothing else
//	closed ───────────────────────────────────────────▶ open ◀──────────┐
//	   ▲                                                │  │            │
//	   │          a probe gets through                  │  │ no call    │ the next call
//	   ├────────────────────────────────────────────────┘  │ for 1 min  │ fails
//	   │                                                   ▼            │
//	   └──────────── the next call gets through ──────── half-open ─────┘
//
// Open, it keeps acquires from the server: they are answered by the outage policy.
// Renewals are always sent, and so are releases once the server has answered one.
//
// A streak of failures is counted for each kind of call, and ended only by a success of
// that kind, or of one that needs more: a server that is full refuses acquires and
// takes releases, and is not back because of them. From the first failure on it is
// probed, so that failures of one streak follow one another in time: two that lie far
// apart, with nothing asked in between, say nothing about the time between them.
type breaker struct {
	breakerHooks
	name string // of the server; empty: the only one

	// These are read without mu.
	state   atomic.Int32
	keeping atomic.Bool           // since it opened a renewal or a release was answered
	called  atomic.Int64          // when somebody last asked
	cause   atomic.Pointer[error] // of the latest failure

	mu      sync.Mutex
	streaks [kinds]streak
	id      string        // whose server is probed
	last    time.Duration // when it failed last
	probing bool
	gone    bool // forgotten: another has its name

	down     time.Duration // when what opened it began
	silent   time.Duration // since when nothing was answered; 0: something was
	heard    time.Duration // when that ended last, after longer than least; 0: nothing to tell
	reported bool          // the store was told of the outage before heard

	logged   time.Duration // how it stands
	saying   bool          // a line about it is due
	saidDown bool          // what the last line about it said
	lasted   time.Duration // the latest outage
}

// breakerHooks are what a breaker needs of others. Those that tell of a change are
// called with the breaker locked, and must not ask it anything.
type breakerHooks struct {
	now     func() time.Duration                 // never 0
	probe   func(id string) (takes, keeps error) // asks the server of id
	log     *slog.Logger
	timeout time.Duration   // of one probe
	least   time.Duration   // of an outage that the store is told of
	stop    <-chan struct{} // ends probing
	opened  func()
	closed  func()
	back    func(name string) // the server answers again, after it was silent; not locked
}

const (
	breakerClosed int32 = iota
	breakerOpen
	breakerHalfOpen
)

// streak is failures that nothing good came between.
type streak struct {
	n     int
	since time.Duration // when the first one ended
}

func newBreaker(name string, hooks breakerHooks) *breaker {
	return &breaker{breakerHooks: hooks, name: name, logged: -logEvery}
}

// allow reports whether a call may be sent.
func (b *breaker) allow(k kind) bool {
	b.called.Store(int64(b.now()))
	return b.state.Load() != breakerOpen || k == keeps && b.keeping.Load()
}

// why is the cause of the outage, or of the failures that may become one.
func (b *breaker) why() error {
	if err := b.cause.Load(); err != nil {
		return *err
	}
	return nil
}

// wanted says that somebody waits for the server to answer.
func (b *breaker) wanted() {
	b.called.Store(int64(b.now()))
	if b.state.Load() != breakerHalfOpen {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reopen()
}

// reopen has a server probed again that nobody asked for a while. mu is held.
func (b *breaker) reopen() {
	if b.state.CompareAndSwap(breakerHalfOpen, breakerOpen) {
		b.startProbing()
	}
}

// failed counts a failure. A inDoubt one, when the caller's time ran out, is counted by
// its time alone. It returns false if the breaker is not the one of its name any more.
func (b *breaker) failed(k kind, id string, err error, sure bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return false
	}
	b.called.Store(int64(b.now()))
	b.count(k, id, err, sure)
	return true
}

// count is failed, also for probes. mu is held.
func (b *breaker) count(k kind, id string, err error, sure bool) {
	now := b.now()
	if now-b.last > 2*(probeEvery+b.timeout) { // nobody looked in between
		b.silent = 0
		if b.state.Load() == breakerClosed {
			b.streaks = [kinds]streak{}
		}
	}
	b.last = now
	b.cause.Store(&err)
	if b.silent == 0 {
		b.silent = now
	}
	s := &b.streaks[k]
	if s.n == 0 {
		*s = streak{1, now}
	} else if sure {
		s.n++
	}
	if b.id == "" {
		b.id = id
	}
	b.reopen()
	b.startProbing()
	if b.state.Load() != breakerClosed {
		return
	}
	n, since := 0, now
	for _, s := range b.streaks {
		if n += s.n; s.n > 0 {
			since = min(since, s.since)
		}
	}
	if n < breakerFailures && now-since < breakerFailing {
		return
	}
	b.down = since
	b.keeping.Store(false)
	b.state.Store(breakerOpen)
	b.opened()
	b.announce()
}

// answered ends the streaks of what the call needed, the outage if that was all, and
// the silence.
func (b *breaker) answered(k kind) {
	b.mu.Lock()
	for i := range k + 1 {
		b.streaks[i] = streak{}
	}
	wasSilent := b.endSilence()
	b.keeping.Store(true)
	switch {
	case b.state.Load() == breakerClosed:
	case b.streaks[takes].n > 0:
		b.reopen()
	default:
		b.state.Store(breakerClosed)
		b.lasted = b.now() - b.down
		b.closed()
		b.announce()
	}
	b.mu.Unlock()
	if wasSilent {
		b.back(b.name)
	}
}

// refused says that an acquire was answered with a no. That needs no memory, so it does
// not close the breaker.
func (b *breaker) refused() {
	if b.state.Load() == breakerClosed {
		b.answered(takes)
	} else {
		b.answered(keeps)
	}
}

// endSilence ends the silence, and reports whether there was one in an outage. mu is
// held.
func (b *breaker) endSilence() bool {
	was := b.silent != 0 && b.state.Load() != breakerClosed
	b.silent = 0
	if now := b.now(); was && now-b.down > b.least {
		b.heard, b.reported = now, false
	}
	return was
}

// answeredSomething says that the server answered something, whatever else it does not.
func (b *breaker) answeredSomething() {
	b.mu.Lock()
	was := b.endSilence()
	b.mu.Unlock()
	if was {
		b.back(b.name)
	}
}

// silence is for how long the server is known to have answered nothing at all. It is 0
// unless the breaker is open.
func (b *breaker) silence() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.Load() == breakerClosed || b.silent == 0 {
		return 0
	}
	return max(b.now()-b.silent, 1)
}

// outage is how long the server could not be asked, if the store must hear of it: what
// is sent in an outage may be what ends it. For store.Pause after that all are told,
// since each id may be kept apart.
func (b *breaker) outage() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	lasts := b.state.Load() != breakerClosed && b.silent != 0 && now-b.down > b.least
	if b.reported && now-b.heard > store.Pause {
		b.heard = 0
	}
	if !lasts && b.heard == 0 {
		return 0
	}
	return now - b.down
}

// wasReported says that the store was told of the outage.
func (b *breaker) wasReported() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.heard != 0 {
		b.reported = true
	}
}

// forget reports whether the breaker has nothing to say any more, and then ends it.
func (b *breaker) forget() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = b.gone || b.state.Load() == breakerClosed && !b.probing && !b.saying && b.now()-b.last > breakerKept &&
		(b.heard == 0 || b.reported && b.now()-b.heard > store.Pause)
	return b.gone
}

// announce logs how the server stands, unless that is what was logged last: at most
// once each logEvery, so a change that comes too soon is told of a little later. mu is
// held.
func (b *breaker) announce() {
	now := b.now()
	if wait := b.logged + logEvery - now; wait > 0 {
		if !b.saying {
			b.saying = true
			time.AfterFunc(wait, func() {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.saying = false
				b.announce()
			})
		}
		return
	}
	down := b.state.Load() != breakerClosed
	if down == b.saidDown {
		return
	}
	b.saidDown, b.logged = down, now
	var which []any
	if b.name != "" {
		which = []any{"server", b.name}
	}
	if down {
		b.log.Error("gotsem: store unreachable, going by the outage policy", append(which, "error", b.why())...)
	} else {
		b.log.Info("gotsem: store answers again", append(which, "after", b.lasted.Round(time.Millisecond))...)
	}
}
