package gotsem

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// How long the answers of a LimitFunc are believed, and how many are kept.
const (
	limitAge      = time.Minute     // an answer
	limitErrorAge = 5 * time.Second // the default that stands in for an error
	limitPatience = time.Second     // most that one call may take
	limitsKept    = 10_000          // ids
	limitCalls    = 500             // calls under way, two goroutines each; one that ignores its ctx may never end
)

// limits knows how many slots an id has: a number, or a LimitFunc whose answers
// are remembered. One call at a time is made per id; while it is made again, the old
// answer is served. At most limitCalls are asked at a time: with so many
// under way, the fallback is served for limitErrorAge.
type limits struct {
	fallback int
	limitOf  func(ctx context.Context, id string) (int, error) // Options.LimitFunc; nil: always fallback
	must     bool                                              // without a fallback, an id whose limit is not known is an error
	log      *slog.Logger

	mu         sync.Mutex
	known      map[string]*limitAnswer
	calls      int       // under way
	complained time.Time // that there are too many
}

type limitAnswer struct {
	limit  int
	err    error         // why limit is the fallback, if it is
	until  time.Time     // ask again after that
	asking chan struct{} // closed when the call under way is answered; nil: none is
}

func newLimits(fallback int, limitOf func(context.Context, string) (int, error), log *slog.Logger) *limits {
	return &limits{fallback: bounded(fallback), limitOf: limitOf, log: log, known: make(map[string]*limitAnswer)}
}

// bounded is the limit that stores take for n: who says "as many as you like" with the
// largest number that there is gets as many as a store can count.
func bounded(n int) int {
	return int(max(-store.MaxLimit, min(int64(n), store.MaxLimit)))
}

var errTooManyCalls = fmt.Errorf("%d calls of it have not returned", limitCalls)

// errNoAnswer is what a LimitFunc says with zero or less, where no default stands in.
var errNoAnswer = errors.New("the LimitFunc answered none")

// answer is what an answer comes to. mu is held.
func (l *limits) answer(a *limitAnswer) (int, error) {
	if l.must && a.limit <= 0 && a.err != nil {
		return 0, fmt.Errorf("the LimitFunc gave none, and there is no Options.Limit to stand in for it: %w", a.err)
	}
	return a.limit, nil
}

// get returns the limit of id. It waits for an answer only if there is none yet:
// for limitPatience, or until ctx is over.
func (l *limits) get(ctx context.Context, id string) (int, error) {
	if l.limitOf == nil {
		return l.fallback, nil
	}
	l.mu.Lock()
	a := l.known[id]
	if a == nil {
		l.makeRoom()
		a = &limitAnswer{limit: l.fallback}
		l.known[id] = a
	}
	first := a.until.IsZero()
	complain := false
	if now := time.Now(); a.asking == nil && !now.Before(a.until) {
		if l.calls < limitCalls {
			l.calls++
			a.asking = make(chan struct{})
			go l.refresh(context.WithoutCancel(ctx), id, a)
		} else {
			a.limit, a.err, a.until = l.fallback, errTooManyCalls, now.Add(limitErrorAge)
			if complain = now.Sub(l.complained) >= limitErrorAge; complain {
				l.complained = now
			}
		}
	}
	limit, err := l.answer(a)
	asking := a.asking
	l.mu.Unlock()
	if complain {
		l.log.Error("gotsem: too many calls of the LimitFunc have not returned, using the default: it must return when its ctx is over", "under_way", limitCalls, "id", id, "default", l.fallback, "asked_again_in", limitErrorAge)
	}
	if !first || asking == nil {
		return limit, err
	}
	select {
	case <-asking:
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.answer(a)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// remembered returns the limit of id as far as it is known, and asks nobody.
func (l *limits) remembered(id string, unknown int) int {
	if l.limitOf == nil {
		return l.fallback
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.known[id]; a != nil {
		return a.limit
	}
	return unknown
}

// refresh calls the LimitFunc once. The caller waits for limitPatience at most, also
// for a LimitFunc that ignores its ctx; that one is not asked again before it returns.
func (l *limits) refresh(ctx context.Context, id string, a *limitAnswer) {
	ctx, cancel := context.WithTimeout(ctx, limitPatience)
	defer cancel()
	type answer struct {
		limit int
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		got := answer{err: errors.New("the LimitFunc ended its goroutine")} // runtime.Goexit
		defer func() { answered <- got }()
		got.limit, got.err = l.askFunc(ctx, id)
	}()
	var got answer
	select {
	case got = <-answered:
	case <-ctx.Done():
		l.remember(id, a, l.fallback, limitErrorAge, fmt.Errorf("no answer within %v", limitPatience), false)
		got = <-answered
	}
	age := limitAge
	if l.must && l.fallback <= 0 && got.err == nil && got.limit <= 0 {
		got.err = fmt.Errorf("%w: %d", errNoAnswer, got.limit)
	}
	if got.err != nil {
		age = limitErrorAge
	}
	l.remember(id, a, got.limit, age, got.err, true)
}

func (l *limits) askFunc(ctx context.Context, id string) (limit int, err error) {
	defer func() {
		if p := recover(); p != nil { // in its own goroutine it would end the program
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return l.limitOf(ctx, id)
}

func (l *limits) remember(id string, a *limitAnswer, limit int, age time.Duration, err error, done bool) {
	if err != nil || limit <= 0 {
		limit = l.fallback
	}
	l.mu.Lock()
	a.limit, a.err, a.until = bounded(limit), err, time.Now().Add(age)
	select {
	case <-a.asking:
	default:
		close(a.asking)
	}
	if done {
		a.asking = nil
		l.calls--
	}
	l.mu.Unlock()
	if err != nil {
		l.log.Warn("gotsem: no limit for an id, using the default", "id", id, "default", l.fallback, "error", err, "asked_again_in", age)
	}
}

// makeRoom forgets an id when limitsKept are known: of a few that the map offers,
// the one that was answered longest ago, and if possible none that is being asked
// for: it would be asked for twice. mu is held.
func (l *limits) makeRoom() {
	if len(l.known) < limitsKept {
		return
	}
	const look = 8
	var oldest string
	var best *limitAnswer
	looked := 0
	for id, a := range l.known {
		if best == nil || a.asking == nil && (best.asking != nil || a.until.Before(best.until)) {
			oldest, best = id, a
		}
		if looked++; looked == look {
			break
		}
	}
	delete(l.known, oldest)
}
