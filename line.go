package gotsem

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// pollEvery is how often a waiter asks without being woken: twice within
// store.Life may be lost before its place is. All waiters of a process ask at
// the same moments, so that their questions share their trips.
const pollEvery = time.Second

// line knows the waiters of this process, so that they can be woken.
type line struct {
	mu      sync.Mutex
	waiters map[string]stander // by slot id
	closed  bool
	empty   chan struct{} // closed when a closed line has emptied
}

// stander is one who stands in line.
type stander struct {
	id    string
	woken chan store.Word // one fits in
}

// join makes a waiter known. It returns nil if the line was closed.
func (l *line) join(id, slotID string) chan store.Word {
	woken := make(chan store.Word, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	if l.waiters == nil {
		l.waiters = make(map[string]stander)
	}
	l.waiters[slotID] = stander{id, woken}
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

func (l *line) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiters)
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

// wake passes a word to its waiter, and returns the id that it waits for. Without such
// a waiter ok is false.
func (l *line) wake(w store.Word) (id string, ok bool) {
	l.mu.Lock()
	waiter, ok := l.waiters[w.SlotID]
	l.mu.Unlock()
	if ok {
		waiter.tell(w)
	}
	return waiter.id, ok
}

func (s stander) tell(w store.Word) {
	select {
	case s.woken <- w:
	default: // it has not looked since the last one, and asks
	}
}

// wakeAll has every waiter ask again: word may have been lost.
func (l *line) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, waiter := range l.waiters {
		waiter.tell(store.Word{})
	}
}

// Acquire takes a lease, and waits in line for it while there is no room: first
// come, first served over all processes, for as long as ctx and MaxWait allow.
// The line is bounded by Options.Queue.
//
// With the line full the error is a *FullError that is ErrQueueFull; after
// MaxWait one that is ErrFull and ErrWaitTooLong. ErrTooHeavy, ErrUnavailable (by
// the outage policy, at once), ErrClosed and the ctx's own error are the others.
// With a ctx that is over nothing is acquired.
//
// A wait costs the store one question a second, and one when it is over, at the latest
// soon after it: a grant that the store sends is believed for [store.Claim] since the last
// question, and then [Lease.Expires] is no later until its first renewal.
func (s *Semaphore) Acquire(ctx context.Context, id string, opts ...Option) (*Lease, error) {
	w := wishesOf(opts)
	limit, err := s.check(ctx, id, w.weight)
	if err != nil {
		return nil, err
	}
	s.listen()
	pooled := s.request(id, w.weight, limit)
	defer s.requests.Put(pooled)
	r := &pooled.Request
	r.Queue = s.queue(limit)
	if r.Queue <= 0 || w.maxWait == 0 {
		r.Queue = 0
		return s.settle(ctx, r)
	}
	// Known to the line before the store is asked: the wake-up may be quicker than
	// the answer.
	woken := s.line.join(r.ID, r.SlotID)
	if woken == nil {
		return nil, ErrClosed
	}
	defer s.line.leave(r.SlotID)
	lease, owed, err := s.wait(ctx, r, woken, w.maxWait)
	if owed {
		// In the background: whoever gives up does not want to wait for it. If a
		// grant meets the giving up, this hands it to the next.
		s.guard.later.add(r.ID, r.SlotID, true)
	}
	return lease, err
}

// queue is how many may wait for an id with that limit.
func (s *Semaphore) queue(limit int) int {
	if s.opt.Queue == 0 {
		return max(limit, 1)
	}
	return s.opt.Queue
}

// wait asks until there is an answer that ends the wait. owed reports that the
// store may still keep a place, or a grant, for r. That is not given back before the
// wait ends: what undoes a question without an answer would undo the grant to the
// next one.
func (s *Semaphore) wait(ctx context.Context, r *store.Request, woken <-chan store.Word, maxWait time.Duration) (_ *Lease, owed bool, _ error) {
	began := s.now()
	ends := time.Duration(math.MaxInt64)
	if maxWait < ends-began {
		ends = began + maxWait
	}
	var timer *time.Timer
	var last store.Decision
	inLine := false
	for {
		sent := s.now()
		r.Away = s.local.cutOff()
		d, err := s.guard.acquire(ctx, r)
		if err == nil {
			s.local.learn(r, d, s.now())
		} else {
			owed = owed || asked(err)
			if over(ctx) != nil && inLine {
				s.stats.gaveUp.Add(1)
				return nil, owed, err
			}
			lease, err := s.policy(ctx, r, err)
			if err == nil || s.opt.Outage != Local || !errors.Is(err, ErrUnavailable) {
				if errors.Is(err, ErrUnavailable) {
					s.stats.unavailable.Add(1)
				}
				return lease, owed, err
			}
			// Local, and no slot to spare yet: one of our own may be released, and
			// the store may come back while our place lives.
			d = store.Decision{Outcome: store.Waiting, Limit: r.Limit, RetryIn: localPoll, Place: 1, Ticket: r.Ticket, Active: last.Active, Waiting: last.Waiting}
		}
		last = d
		switch d.Outcome {
		case store.Granted:
			lease := s.lease(ctx, r, d, sent)
			if lease.trusted(s.now()) {
				s.stats.waited(s.now() - began)
				s.keep(lease)
				return lease, false, nil
			}
			continue // stood still for a whole TTL: an old grant is not believed
		case store.Waiting, store.Recovering:
		default:
			return nil, false, s.refusal(r, d, 0)
		}
		if owed = true; !inLine {
			inLine = true
			s.stats.queued.Add(1)
		}
		r.Ticket = max(r.Ticket, d.Ticket)
		now := s.now()
		pause := min(s.untilPoll(now), ends-now)
		if (d.Place == 1 || d.Outcome == store.Recovering) && d.RetryIn > 0 {
			pause = min(pause, d.RetryIn+time.Millisecond) // stores count in milliseconds
		}
		if timer == nil {
			timer = time.NewTimer(pause)
			defer timer.Stop()
		} else {
			timer.Reset(pause)
		}
		select {
		case w := <-woken:
			if lease := s.believe(ctx, r, w, d, sent); lease != nil {
				s.stats.waited(s.now() - began)
				s.keep(lease)
				return lease, false, nil
			}
		case <-timer.C:
			if s.now() >= ends {
				if d.Outcome == store.Waiting {
					d.Outcome = store.Full
				}
				return nil, true, s.refusal(r, d, s.now()-began)
			}
			if r.Limit, err = s.limits.of(ctx, r.ID); err != nil {
				return nil, true, fmt.Errorf("gotsem: %q: %w", r.ID, err)
			}
		case <-ctx.Done():
			s.stats.gaveUp.Add(1)
			return nil, true, fmt.Errorf("gotsem: %q: gave up after %v in line: %w", r.ID, (s.now() - began).Round(time.Millisecond), ctx.Err())
		case <-s.closing:
			return nil, true, ErrClosed
		}
	}
}

// believe makes a lease of the grant that a word tells of, without asking the store
// for it, which saves a hand-off a round trip; or it returns nil, and the store must be
// asked. d is what the store said last, and sent is when it was asked that.
//
// A word may have lain about for long, and the waiter may have been stopped, while its
// grant went to the next. But it names the question before it, so that it is no older than that;
// and so long the grant is kept for us. What is believed is a lease of that time: it
// is renewed soon, unless it is released before.
func (s *Semaphore) believe(ctx context.Context, r *store.Request, w store.Word, d store.Decision, sent time.Duration) *Lease {
	if w.Fence == 0 || w.Asked == 0 || w.Asked != d.Asked || over(ctx) != nil || s.closed.Load() {
		return nil
	}
	ttl := min(store.Claim, s.opt.TTL)
	trust := sent + ttl - margin(ttl)
	now := s.now()
	if trust-now < ttl/4 { // it must be renewed in what is left
		return nil
	}
	d = store.Decision{Outcome: store.Granted, Limit: w.Limit, Fence: w.Fence}
	s.local.learn(r, d, now)
	lease := s.lease(ctx, r, d, sent)
	lease.trust.Store(int64(trust))
	lease.brief = true
	return lease
}

// untilPoll is how long until the waiters of this process ask together.
func (s *Semaphore) untilPoll(now time.Duration) time.Duration {
	return pollEvery - now%pollEvery
}
