package gotsem

import (
	"context"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// line knows the waiters of this process, so that they can be woken.
type line struct {
	mu      sync.Mutex
	waiters map[string]waiter // by slot id
	closed  bool
	empty   chan struct{} // closed when a closed line has emptied
}

// waiter is one call of Acquire that waits.
type waiter struct {
	id    string
	holds bool              // slots of other ids, under the same slot id
	woken chan store.Wakeup // one fits in
	since time.Time
}

// join makes a waiter known. It returns nil if the line was closed.
func (l *line) join(id, slotID string, holds bool) chan store.Wakeup {
	woken := make(chan store.Wakeup, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	if l.waiters == nil {
		l.waiters = make(map[string]waiter)
	}
	l.waiters[slotID] = waiter{id, holds, woken, time.Now()}
	return woken
}

func (l *line) leave(slotID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if delete(l.waiters, slotID); len(l.waiters) == 0 {
		l.waiters = nil // a map does not shrink by itself
		if l.empty != nil {
			close(l.empty)
			l.empty = nil
		}
	}
}

// stands returns how many wait, and how long the first of them has.
func (l *line) stands() (n int, oldest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, w := range l.waiters {
		oldest = max(oldest, now.Sub(w.since))
	}
	return len(l.waiters), oldest
}

// close lets nobody join any more, and waits, for as long as ctx allows, until
// all have left.
func (l *line) close(ctx context.Context) {
	l.mu.Lock()
	l.closed = true
	if len(l.waiters) == 0 {
		l.mu.Unlock()
		return
	}
	empty := make(chan struct{})
	l.empty = empty
	l.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
	}
}

// wake passes a wake-up to its waiter. Without such a waiter ok is false.
func (l *line) wake(w store.Wakeup) (one waiter, ok bool) {
	l.mu.Lock()
	one, ok = l.waiters[w.SlotID]
	l.mu.Unlock()
	if ok {
		one.wake(w)
	}
	return one, ok
}

func (w waiter) wake(up store.Wakeup) {
	select {
	case w.woken <- up:
	default: // it has not looked since the last one, and polls
	}
}

// wakeAll has every waiter poll: wake-ups may have been lost.
func (l *line) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, waiter := range l.waiters {
		waiter.wake(store.Wakeup{})
	}
}
