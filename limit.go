package gotsem

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// How long the answers of a LimitFunc are believed, and how many are kept.
const (
	limitAge      = time.Minute     // an answer
	limitErrorAge = 5 * time.Second // the default that stands in for an error
	limitPatience = time.Second     // most that one question may take
	limitsKept    = 10_000          // ids
	limitsAsked   = 500             // questions under way, two goroutines each; one that ignores its ctx may never end
)

// limits knows how many slots an id has: a number, or a question whose answers
// are remembered. One question at a time is asked per id; while it is asked
// again, the old answer is served. At most limitsAsked are asked at a time: with so many
// under way, the fallback is served for limitErrorAge.
type limits struct {
	fallback int
	ask      func(ctx context.Context, id string) (int, error) // nil: always fallback
	log      *slog.Logger

	mu         sync.Mutex
	known      map[string]*limitAnswer
	asked      int       // questions under way
	complained time.Time // that there are too many
}

type limitAnswer struct {
	limit  int
	until  time.Time     // ask again after that
	asking chan struct{} // closed when the question under way is answered; nil: none is
}

func newLimits(fallback int, ask func(context.Context, string) (int, error), log *slog.Logger) *limits {
	return &limits{fallback: fallback, ask: ask, log: log, known: make(map[string]*limitAnswer)}
}

// of returns the limit of id. It waits for an answer only if there is none yet:
// for limitPatience, or until ctx is over.
func (l *limits) of(ctx context.Context, id string) (int, error) {
	if l.ask == nil {
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
		if l.asked < limitsAsked {
			l.asked++
			a.asking = make(chan struct{})
			go l.question(context.WithoutCancel(ctx), id, a)
		} else {
			a.limit, a.until = l.fallback, now.Add(limitErrorAge)
			if complain = now.Sub(l.complained) >= limitErrorAge; complain {
				l.complained = now
			}
		}
	}
	limit, asking := a.limit, a.asking
	l.mu.Unlock()
	if complain {
		l.log.Error("gotsem: too many questions to the LimitFunc are not answered, using the default: it must return when its ctx is over", "under_way", limitsAsked, "id", id, "default", l.fallback, "asked_again_in", limitErrorAge)
	}
	if !first || asking == nil {
		return limit, nil
	}
	select {
	case <-asking:
		l.mu.Lock()
		defer l.mu.Unlock()
		return a.limit, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// question asks once. The caller waits for limitPatience at most, also for a
// LimitFunc that ignores its ctx; that one is not asked again before it returns.
func (l *limits) question(ctx context.Context, id string, a *limitAnswer) {
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
		got.limit, got.err = l.call(ctx, id)
	}()
	var got answer
	select {
	case got = <-answered:
	case <-ctx.Done():
		l.store(id, a, l.fallback, limitErrorAge, fmt.Errorf("no answer within %v", limitPatience), false)
		got = <-answered
	}
	age := limitAge
	if got.err != nil {
		age = limitErrorAge
	}
	l.store(id, a, got.limit, age, got.err, true)
}

func (l *limits) call(ctx context.Context, id string) (limit int, err error) {
	defer func() {
		if p := recover(); p != nil { // in its own goroutine it would end the program
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return l.ask(ctx, id)
}

func (l *limits) store(id string, a *limitAnswer, limit int, age time.Duration, err error, done bool) {
	if err != nil || limit <= 0 {
		limit = l.fallback
	}
	l.mu.Lock()
	a.limit, a.until = limit, time.Now().Add(age)
	select {
	case <-a.asking:
	default:
		close(a.asking)
	}
	if done {
		a.asking = nil
		l.asked--
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
