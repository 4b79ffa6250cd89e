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

// pollAgain is how soon it asks again when it had no answer.
const pollAgain = 20 * time.Millisecond

// line knows the waiters of this process, so that they can be woken.
type line struct {
	mu      sync.Mutex
	waiters map[string]waiter // by slot id
	closed  bool
	empty   chan struct{} // closed when a closed line has emptied
}

// waiter is one who stands in line.
type waiter struct {
	id    string
	woken chan store.Wakeup // one fits in
}

// join makes a waiter known. It returns nil if the line was closed.
func (l *line) join(id, slotID string) chan store.Wakeup {
	woken := make(chan store.Wakeup, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	if l.waiters == nil {
		l.waiters = make(map[string]waiter)
	}
	l.waiters[slotID] = waiter{id, woken}
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
func (l *line) wake(w store.Wakeup) (id string, ok bool) {
	l.mu.Lock()
	waiter, ok := l.waiters[w.SlotID]
	l.mu.Unlock()
	if ok {
		waiter.tell(w)
	}
	return waiter.id, ok
}

func (s waiter) tell(w store.Wakeup) {
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
		waiter.tell(store.Wakeup{})
	}
}

// Acquire takes a lease, and waits in line for it while there is no room: first
// come, first served over all processes, for as long as ctx and MaxWait allow.
// The line is bounded by Options.Queue.
//
// With the line full the error is a *FullError that is ErrQueueFull; after
// MaxWait one that is ErrFull and ErrWaitTooLong, or ErrUnavailable if the store did
// not answer. ErrTooHeavy, ErrUnavailable (by the outage policy, at once), ErrClosed
// and the ctx's own error are the others.
//
// A ctx that is over wins: nothing is acquired with it, and a grant that comes when it
// is over is given back. The place in line, or that grant, is given back before Acquire
// returns, for which it waits 50 ms at most; a store that takes longer, or has not
// answered by the ctx's deadline, is left to the background, and until then a Try may
// still find the place.
//
// A wait costs the store one question a second, and one when it is over, at the latest
// soon after it: a grant that the store sends is believed for [store.Claim] since the last
// question, and then [Lease.Expires] is no later until its first renewal.
func (s *Semaphore) Acquire(ctx context.Context, id string, opts ...Option) (*Lease, error) {
	w := callOptionsOf(opts)
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
	lease, owed, err := s.wait(ctx, r, woken, w.maxWait)
	slotID := r.SlotID // r goes back to the pool
	leave := func() { s.line.leave(slotID) }
	switch owed {
	case aPlace, aPlaceInDoubt:
		// If a grant meets the giving up, this hands it to the next.
		s.withdraw(r.ID, slotID, owed == aPlaceInDoubt, leave)
	case unknown:
		s.gate.backlog.add(r.ID, slotID, true)
		leave()
	default:
		leave()
	}
	return lease, err
}

// owing is what the store may still keep for a wait that is over.
type owing uint8

const (
	nothing       owing = iota
	aPlace              // or a grant that came just now
	aPlaceInDoubt       // the same, and a request that was not answered may add it again
	unknown             // the store does not answer at the moment
)

// queue is how many may wait for an id with that limit.
func (s *Semaphore) queue(limit int) int {
	if s.opt.Queue == 0 {
		return max(limit, 1)
	}
	return bounded(s.opt.Queue)
}

// wait asks until there is an answer that ends the wait. owed is what the store may
// still keep for r. That is not given back before the wait ends: what undoes a question
// without an answer would undo the grant to the next one.
func (s *Semaphore) wait(ctx context.Context, r *store.Request, woken <-chan store.Wakeup, maxWait time.Duration) (_ *Lease, owed owing, _ error) {
	began := s.now()
	ends := time.Duration(math.MaxInt64)
	if maxWait < ends-began {
		ends = began + maxWait
	}
	var timer *time.Timer
	var last store.Decision
	var away error // why the store did not answer the last question; nil: it did
	var answered time.Duration
	inLine, doubt := false, false
	place := func() owing {
		if doubt {
			return aPlaceInDoubt
		}
		return aPlace
	}
	for {
		sent := s.now()
		r.OutageFor = s.local.unreportedOutage(r.ID)
		d, cut, err := s.poll(ctx, r, ends-sent, inLine || away != nil)
		if err == nil {
			answered = sent
			s.local.learn(r, d, s.now())
			away = nil
		} else {
			doubt = doubt || asked(err)
			if doubt || inLine {
				owed = unknown
			}
			if cut && over(ctx) == nil {
				return nil, owed, s.waitedTooLong(r, last, s.now()-began, away)
			}
			if end := over(ctx); end != nil {
				if !errors.Is(err, end) { // the store was found away in the same moment
					err = fmt.Errorf("gotsem: %q: gave up after %v: %w (%w)", r.ID, (s.now() - began).Round(time.Millisecond), end, err)
				}
				if owed == unknown && (errors.Is(ctx.Err(), context.Canceled) || !asked(err)) {
					owed = place()
				}
				if inLine {
					s.stats.gaveUp.Add(1)
				}
				return nil, owed, unlessAway(err, away)
			}
			// One question failed, and the place lives: it is put again before the
			// policy answers, until the store is known to be away.
			again := inLine && asked(err) && errors.Is(err, ErrUnavailable) && s.now() < answered+store.Life-s.opt.StoreTimeout
			var lease *Lease
			if !again {
				lease, err = s.policy(ctx, r, err)
			}
			if !again && (err == nil || s.opt.Outage != Local || !errors.Is(err, ErrUnavailable)) {
				if errors.Is(err, ErrUnavailable) {
					s.stats.unavailable.Add(1)
				}
				return lease, owed, err
			}
			if away == nil || asked(err) { // one that says why
				away = err
			}
			// Local, and no slot to spare yet: one of our own may be released, and
			// the store may come back while our place lives.
			retryIn := localPoll
			if again {
				retryIn = pollAgain
			}
			d = store.Decision{Outcome: store.Waiting, Limit: r.Limit, RetryIn: retryIn, Place: 1, Ticket: r.Ticket, Active: last.Active, Waiting: last.Waiting}
		}
		last = d
		switch d.Outcome {
		case store.Granted:
			if err := ctx.Err(); err != nil {
				if inLine {
					s.stats.gaveUp.Add(1)
				}
				return nil, place(), fmt.Errorf("gotsem: %q: granted when its ctx was over, and given back: %w", r.ID, err)
			}
			lease := s.lease(ctx, r, d, sent)
			if lease.trusted(s.now()) {
				s.admitted(lease, began, inLine)
				return lease, nothing, nil
			}
			continue // stood still for a whole TTL: an old grant is not believed
		case store.Waiting, store.Recovering:
		default:
			return nil, nothing, s.refusal(r, d, 0)
		}
		if !inLine {
			inLine = true
			s.stats.queued.Add(1)
			s.drains.want()
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
				s.admitted(lease, began, inLine)
				return lease, nothing, nil
			}
		case <-timer.C:
			if now := s.now(); now >= ends {
				return nil, s.owes(away, place()), s.waitedTooLong(r, d, now-began, away)
			}
			if r.Limit, err = s.limits.of(ctx, r.ID); err != nil {
				return nil, s.owes(away, place()), fmt.Errorf("gotsem: %q: asking for its limit: %w", r.ID, err)
			}
		case <-ctx.Done():
			s.stats.gaveUp.Add(1)
			err := fmt.Errorf("gotsem: %q: gave up after %v in line: %w", r.ID, (s.now() - began).Round(time.Millisecond), ctx.Err())
			return nil, s.owes(away, place()), unlessAway(err, away)
		case <-s.closing:
			return nil, s.owes(away, place()), ErrClosed
		}
	}
}

// admitted counts a wait that ended with a lease, and has that renewed.
func (s *Semaphore) admitted(lease *Lease, began time.Duration, inLine bool) {
	if inLine {
		s.stats.waited(s.now() - began)
	}
	s.keep(lease, s.now())
}

// owes is what is owed for a place: while the store does not answer, nobody waits until
// it takes it back.
func (s *Semaphore) owes(away error, place owing) owing {
	if away != nil {
		return unknown
	}
	return place
}

// poll asks the store for r. Who has asked before asks within what is left of its
// waiting; cut reports that there was no answer by the end of that.
func (s *Semaphore) poll(ctx context.Context, r *store.Request, left time.Duration, again bool) (d store.Decision, cut bool, err error) {
	if !again || left >= s.opt.StoreTimeout {
		d, err = s.gate.acquire(ctx, r)
		return d, false, err
	}
	bounded, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	d, err = s.gate.acquire(bounded, r)
	return d, err != nil && over(bounded) != nil, err
}

// waitedTooLong is how a wait ends after its MaxWait. d is what the store said last. It
// says nothing about room if the store did not answer: that is no "full".
func (s *Semaphore) waitedTooLong(r *store.Request, d store.Decision, waited time.Duration, away error) error {
	if away != nil {
		s.stats.unavailable.Add(1)
		return fmt.Errorf("%w; it was asked for %v", away, waited.Round(time.Millisecond))
	}
	if d.Outcome == store.Waiting {
		d.Outcome = store.Full
	}
	return s.refusal(r, d, waited)
}

// unlessAway is err, and what kept the store from answering, if it did not.
func unlessAway(err, away error) error {
	if away == nil {
		return err
	}
	return fmt.Errorf("%w (%w)", err, away)
}

// believe makes a lease of the grant that a word tells of, without asking the store
// for it, which saves a hand-off a round trip; or it returns nil, and the store must be
// asked. d is what the store said last, and sent is when it was asked that.
//
// A word may have lain about for long, and the waiter may have been stopped, while its
// grant went to the next. But it names the question before it, so that it is no older than that;
// and so long the grant is kept for us. What is believed is a lease of that time: it
// is renewed soon, unless it is released before.
func (s *Semaphore) believe(ctx context.Context, r *store.Request, w store.Wakeup, d store.Decision, sent time.Duration) *Lease {
	if w.Fence == 0 || w.PollID == 0 || w.PollID != d.PollID || over(ctx) != nil || s.closed.Load() {
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
	lease.since = now // and no second earlier
	return lease
}

// untilPoll is how long until the waiters of this process ask together.
func (s *Semaphore) untilPoll(now time.Duration) time.Duration {
	return pollEvery - now%pollEvery
}
