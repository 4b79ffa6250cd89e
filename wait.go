package gotsem

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// pollEvery is how often a waiter polls without being woken: twice within
// store.Life may be lost before its place is. All waiters of a process poll at
// the same moments, so that their requests share their batches.
const pollEvery = time.Second

// pollAgain is how soon it polls again when it had no answer.
const pollAgain = 20 * time.Millisecond

// wait is one Acquire that may stand in line. It polls, takes from the answer what that
// means, and pauses until the next event: a wake-up, the time to poll again, or the end
// of its ctx, its MaxWait or the semaphore.
type wait struct {
	s     *Semaphore
	r     *request
	woken <-chan store.Wakeup
	timer *time.Timer

	began, ends time.Duration // ends: by MaxWait

	sent     time.Duration  // when the latest poll was sent
	last     store.Decision // what is known of the line: the latest answer
	answered time.Duration  // when the poll was sent that had it
	away     error          // why the store did not answer the latest poll; nil: it did

	inLine  bool // the store keeps a place, for all that is known
	inDoubt bool // a poll was not answered: it may reach the store yet
}

// outcome is how a wait ended.
type outcome struct {
	lease *Lease
	left  leftover
	err   error
}

// leftover is what the store may still keep for a wait that is over.
type leftover uint8

const (
	nothing       leftover = iota
	aPlace                 // or a grant that came just now
	aPlaceInDoubt          // the same, and a poll that was not answered may add it again
	unknown                // the store does not answer at the moment
)

// wait stands in line for r. What the store may still keep for it is released when the
// wait is over, and not before: what undoes a poll without an answer would undo the
// grant to the next one.
func (s *Semaphore) wait(ctx context.Context, r *request, maxWait time.Duration) (*Lease, error) {
	// Known to the line before the store is asked: the wake-up may be quicker than
	// the answer.
	woken := s.line.join(r.ID, r.SlotID, r.part != nil)
	if woken == nil {
		return nil, ErrClosed
	}
	w := wait{s: s, r: r, woken: woken, began: s.now(), ends: math.MaxInt64}
	if maxWait < w.ends-w.began {
		w.ends = w.began + maxWait
	}
	o := w.run(ctx)
	if slow, waited := s.opt.SlowWait, s.now()-w.began; slow > 0 && waited >= slow {
		s.opt.Logger.Warn("gotsem: a call waited for long", "id", r.ID, "owner", s.owner, "waited", waited, "granted", o.err == nil)
	}
	slotID := r.SlotID // r goes back to the pool
	switch o.left {
	case aPlace, aPlaceInDoubt:
		// If a grant meets the giving up, this hands it to the next.
		s.withdraw(r.ID, slotID, o.left == aPlaceInDoubt, func() { s.line.leave(slotID) })
		return o.lease, o.err
	case unknown:
		s.gate.backlog.add(r.ID, slotID, true)
	}
	s.line.leave(slotID)
	return o.lease, o.err
}

// run polls until there is an answer or an event that ends the wait.
func (w *wait) run(ctx context.Context) outcome {
	for {
		d, o, over := w.poll(ctx)
		if over {
			return o
		}
		w.last = d
		now := w.s.now()
		pause, waits := meaning(d, w.s.untilPoll(now))
		if !waits {
			if o, over := w.decided(ctx, d); over {
				return o
			}
			continue
		}
		w.standInLine(d)
		if o, over := w.next(ctx, min(pause, w.ends-now)); over {
			return o
		}
	}
}

// meaning is what an answer means to a waiter: that the wait is over, one way or the
// other, or that it goes on, and for how long it pauses at most before it polls again.
func meaning(d store.Decision, untilPoll time.Duration) (pause time.Duration, waits bool) {
	if d.Outcome != store.Waiting && d.Outcome != store.Recovering {
		return 0, false
	}
	if (d.Place == 1 || d.Outcome == store.Recovering) && d.RetryIn > 0 {
		return min(untilPoll, d.RetryIn+time.Millisecond), true // stores count in milliseconds
	}
	return untilPoll, true
}

// decided ends the wait with a grant or a refusal. The wait goes on after a grant that
// came when it was not good any more: the process stood still for a whole TTL.
func (w *wait) decided(ctx context.Context, d store.Decision) (outcome, bool) {
	if d.Outcome != store.Granted {
		return outcome{err: w.s.refusal(w.r, d, 0)}, true
	}
	if err := ctx.Err(); err != nil {
		w.countGivingUp()
		return outcome{left: w.place(), err: tooLate(w.r, err)}, true
	}
	lease := w.s.newLease(ctx, &w.r.Request, byStore, d, w.sent)
	if !lease.trusted(w.s.now()) {
		return outcome{}, false
	}
	return w.admitted(lease), true
}

// standInLine notes that the store keeps a place.
func (w *wait) standInLine(d store.Decision) {
	if !w.inLine {
		w.r.seen.stood(d.Place)
		w.inLine = true
		w.s.stats.queued.Add(1)
		w.s.drains.want()
	}
	w.r.Ticket = max(w.r.Ticket, d.Ticket)
}

// next waits for the next event, for pause at most. The wait goes on, with a poll,
// unless the event ends it.
func (w *wait) next(ctx context.Context, pause time.Duration) (outcome, bool) {
	s := w.s
	if w.timer == nil {
		w.timer = time.NewTimer(pause)
	} else {
		w.timer.Reset(pause)
	}
	defer w.timer.Stop()
	select {
	case up := <-w.woken:
		if lease := s.leaseByWakeup(ctx, &w.r.Request, up, w.last, w.sent); lease != nil {
			return w.admitted(lease), true
		}
	case <-w.timer.C:
		if now := s.now(); now >= w.ends {
			return outcome{left: w.place(), err: w.tooLong(now)}, true
		}
		var err error
		if w.r.Limit, err = s.limits.get(ctx, w.r.ID); err != nil {
			return outcome{left: w.place(), err: fmt.Errorf("gotsem: %q: asking for its limit: %w", w.r.ID, err)}, true
		}
	case <-ctx.Done():
		if context.Cause(ctx) != errPassedLost {
			w.countGivingUp()
		}
		err := fmt.Errorf("gotsem: %q: gave up after %v in line: %w", w.r.ID, w.soFar(), ctx.Err())
		return outcome{left: w.place(), err: w.withAway(err)}, true
	case <-s.closing:
		return outcome{left: w.place(), err: ErrClosed}, true
	}
	return outcome{}, false
}

// poll asks the store once. A poll without an answer ends the wait, or is made into the
// decision to go on waiting.
func (w *wait) poll(ctx context.Context) (d store.Decision, o outcome, over bool) {
	w.sent = w.s.now()
	d, cut, err := w.askWithin(ctx, w.ends-w.sent)
	if err != nil {
		return w.unanswered(ctx, cut, err)
	}
	w.answered, w.away = w.sent, nil
	return d, outcome{}, false
}

// askWithin asks the store. Who has asked before asks within what is left of its
// waiting; cut reports that there was no answer by the end of that.
func (w *wait) askWithin(ctx context.Context, left time.Duration) (d store.Decision, cut bool, err error) {
	if !w.inLine && w.away == nil || left >= w.s.opt.StoreTimeout {
		d, err = w.s.ask(ctx, w.r)
		return d, false, err
	}
	bounded, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	d, err = w.s.ask(bounded, w.r)
	return d, err != nil && over(bounded) != nil, err
}

// unanswered is what becomes of a poll that ended with err.
//
// One that failed says little while the place lives: it is put again before the outage
// policy answers, until the store is known to be away. Under Outage Local the wait goes
// on even then: a slot of our own may be released, and the store may come back while
// the place lives.
func (w *wait) unanswered(ctx context.Context, cut bool, err error) (d store.Decision, o outcome, done bool) {
	s := w.s
	arrived := mayHaveArrived(err)
	w.inDoubt = w.inDoubt || arrived
	if w.inDoubt || w.inLine {
		o.left = unknown
	}
	if end := over(ctx); end != nil {
		o.err = w.gaveUp(err, end)
		if o.left == unknown && (errors.Is(ctx.Err(), context.Canceled) || !arrived) {
			o.left = w.placeOf() // the store has said nothing to the contrary
		}
		return d, o, true
	}
	if cut {
		o.err = w.tooLong(s.now())
		return d, o, true
	}
	again := w.inLine && arrived && errors.Is(err, ErrUnavailable) && s.now() < w.answered+store.Life-s.opt.StoreTimeout
	retryIn := pollAgain
	if !again {
		if o.lease, err = s.policy(ctx, w.r, err); err == nil {
			return d, o, true
		}
		if s.opt.Outage != Local || !errors.Is(err, ErrUnavailable) {
			o.err = s.turnedAway(err)
			return d, o, true
		}
		retryIn = localPoll
	}
	if w.away == nil || arrived { // the one that says why
		w.away = err
	}
	return store.Decision{
		Outcome: store.Waiting, Limit: w.r.Limit, RetryIn: retryIn, Place: 1, Ticket: w.r.Ticket,
		Active: w.last.Active, Waiting: w.last.Waiting,
	}, outcome{}, false
}

// gaveUp is the error of a wait whose ctx ended, with end, while the store was asked,
// which ended with err.
func (w *wait) gaveUp(err, end error) error {
	if !errors.Is(err, end) { // the store was found away in the same moment
		err = fmt.Errorf("gotsem: %q: gave up after %v: %w (%w)", w.r.ID, w.soFar(), end, err)
	}
	if w.inLine {
		w.s.stats.gaveUp.Add(1)
	}
	return w.withAway(err)
}

func (w *wait) countGivingUp() {
	if w.inLine {
		w.s.stats.gaveUp.Add(1)
	}
}

// soFar is for how long it has waited, for an error's text.
func (w *wait) soFar() time.Duration { return (w.s.now() - w.began).Round(time.Millisecond) }

// admitted counts a wait that ended with a lease, and has that renewed.
func (w *wait) admitted(lease *Lease) outcome {
	now := w.s.now()
	if w.inLine {
		w.s.stats.waited(now - w.began)
	}
	lease.part = w.r.part != nil
	w.s.keep(lease, now)
	return outcome{lease: lease}
}

// place is what the store keeps for a wait that ends in line. While the store does not
// answer, nobody waits until it takes it back.
func (w *wait) place() leftover {
	if w.away != nil {
		return unknown
	}
	return w.placeOf()
}

// placeOf is place of a store that answers.
func (w *wait) placeOf() leftover {
	if w.inDoubt {
		return aPlaceInDoubt
	}
	return aPlace
}

// tooLong is how a wait ends after its MaxWait. What the store said last says nothing
// about room if it does not answer any more: that is no "full".
func (w *wait) tooLong(now time.Duration) error {
	waited := now - w.began
	if w.away != nil {
		w.s.stats.unavailable.Add(1)
		return fmt.Errorf("%w; it was asked for %v", w.away, waited.Round(time.Millisecond))
	}
	d := w.last
	if d.Outcome == store.Waiting {
		d.Outcome = store.Full
	}
	return w.s.refusal(w.r, d, waited)
}

// withAway is err, and what kept the store from answering, if it did not.
func (w *wait) withAway(err error) error {
	if w.away == nil {
		return err
	}
	return fmt.Errorf("%w (%w)", err, w.away)
}

// leaseByWakeup makes a lease of the grant that a wake-up tells of, without asking the
// store for it, which saves a hand-off a round trip; or it returns nil, and the store
// must be polled. d is what the store said last, and sent is when it was asked that.
//
// A wake-up may be delayed, and the waiter may have been stopped, while its grant went
// to the next. But a wake-up names the poll before it, so that it is no older than that
// poll; and the store keeps the grant for store.Claim from then. So the lease is
// provisional: trusted for that long, and renewed soon, unless it is released before.
func (s *Semaphore) leaseByWakeup(ctx context.Context, r *store.Request, up store.Wakeup, d store.Decision, sent time.Duration) *Lease {
	if up.Fence == 0 || up.PollID == 0 || up.PollID != d.PollID || over(ctx) != nil || s.closed.Load() {
		return nil
	}
	grant := store.Decision{Outcome: store.Granted, Limit: up.Limit, Fence: up.Fence}
	if ttl := min(store.Claim, s.opt.TTL); sent+ttl-margin(ttl)-s.now() < ttl/4 { // it must be renewed in what is left
		return nil
	}
	s.local.learn(r, grant)
	return s.newLease(ctx, r, provisional, grant, sent)
}

// untilPoll is how long until the waiters of this process poll together.
func (s *Semaphore) untilPoll(now time.Duration) time.Duration {
	return pollEvery - now%pollEvery
}
