package redisstore

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// The verbs that go in batches: acquire, release, renew.

// Acquire implements store.Store.
func (s *Store) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	if err := s.check(ctx, r.ID, r.SlotID); err != nil {
		return store.Decision{}, err
	}
	if err := r.Check(); err != nil {
		return store.Decision{}, err
	}
	o := s.op(acquire, r.ID, r.SlotID, r.Budget)
	o.weight, o.limit, o.queue, o.ticket = int64(r.Weight), int64(r.Limit), int64(r.Queue), int64(r.Ticket)
	o.ttl = r.TTL.Milliseconds()
	o.plain, o.firstAttempt, o.owner, o.grace = r.Plain, r.FirstAttempt, r.Owner, s.exec.graces.of(r.Grace)
	o.outage = r.OutageFor.Milliseconds()
	o.asClass(r)
	// Who would wait asks the plain script first, and goes on from there if it is refused.
	if r.Weight == 1 && o.queue >= 0 && r.Ticket == 0 && o.outage == 0 && (r.Queue <= 0 || r.FirstAttempt) && !s.codec.general && !s.codec.metas.has(r.ID) {
		o.verb, o.lease = plainAcquire, !r.Plain || o.grace > 0
	}
	s.exec.graces.note(r.Grace)
	shard := r.Queue > 0 && s.codec.sharded()
	if shard {
		s.subscriber.shards.join(r.SlotID, o.names(s.prefix).shardChannel(s.token))
	}
	left, err := s.do(ctx, o)
	var d store.Decision
	if !left {
		d = o.decision
	}
	if err != nil && isHalfway(err) { // what it has done so far is undone
		again := s.op(release, r.ID, r.SlotID, r.Budget)
		again.grace, again.async = r.Grace.Milliseconds(), func(_, _ string, _ error) {}
		s.batcherNow(again).submit(again)
	}
	if !left {
		s.free(o)
	}
	// Who was not answered asks again, or gives back; who is misconfigured does neither.
	if shard && (err == nil && d.Outcome != store.Waiting && d.Outcome != store.Recovering || errors.Is(err, store.ErrConfig)) {
		s.subscriber.shards.leave(r.SlotID)
	}
	return d, err
}

// asClass has o say what r's class may do. It takes no room of those that have none: the
// lead of who has no ticket yet is a negative one, in µs, and the share of who does not
// wait, in thousandths, a negative line.
func (o *op) asClass(r *store.Request) {
	if r.Class != store.Default {
		o.class = int64(r.Class.Index()) + 1
	}
	if r.Ticket == 0 && r.Queue > 0 {
		o.ticket = -r.Lead.Microseconds()
	}
	if o.queue = max(o.queue, 0); o.queue == 0 && r.Share > 0 && r.Share < store.WholeShare {
		o.queue = int64(-r.Share)
	}
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, r *store.Release) (bool, error) {
	if err := s.check(ctx, r.ID, r.SlotID); err != nil {
		if r.Async != nil {
			r.Async(r.ID, r.SlotID, err)
			return false, nil
		}
		return false, err
	}
	if s.codec.sharded() {
		s.subscriber.shards.leave(r.SlotID)
	}
	o := s.op(release, r.ID, r.SlotID, r.Budget)
	o.grace = s.exec.graces.of(r.Grace)
	if !s.codec.general && !s.codec.metas.has(r.ID) {
		o.verb = plainRelease
	}
	s.giveBackTwice(o)
	if o.async = r.Async; o.async != nil {
		s.batcherNow(o).submit(o)
		return false, nil
	}
	left, err := s.do(ctx, o)
	freed := !left && o.freed
	if !left {
		s.free(o)
	}
	return freed, err
}

// giveBackTwice gives back once more what was asked for by two sendings, when the first
// is too late.
func (s *Store) giveBackTwice(o *op) {
	if s.exec.resent.n.Load() == 0 {
		return
	}
	again := question{verb: o.verb, id: o.id, slot: o.slot, grace: o.grace, budget: o.budget}
	s.exec.resent.released(asking{o.id, o.slot}, func() {
		o := s.op(again.verb, again.id, again.slot, again.budget)
		o.grace, o.async = again.grace, func(_, _ string, _ error) {}
		s.batcherNow(o).submit(o)
	})
}

// Renew implements store.Store.
func (s *Store) Renew(ctx context.Context, rs []store.Renewal) []store.RenewResult {
	out := make([]store.RenewResult, len(rs))
	var wait sync.WaitGroup
	began, budget := time.Now(), defaultBudget
	if d, ok := ctx.Deadline(); ok {
		budget = time.Until(d)
	}
	for i := range rs {
		r := &rs[i]
		if err := cmp.Or(s.check(ctx, r.ID, r.SlotID), r.Check()); err != nil {
			out[i].Err = err
			continue
		}
		o := s.op(renew, r.ID, r.SlotID, budget)
		o.ttl, o.weight, o.limit, o.fence = r.TTL.Milliseconds(), int64(r.Weight), int64(r.Limit), int64(r.Fence)
		o.trust, o.grace, o.owner, o.register = r.Trust.Milliseconds(), s.exec.graces.of(r.Grace), r.Owner, r.Register
		o.outage = r.OutageFor.Milliseconds()
		wait.Add(1)
		o.async = func(_, _ string, err error) {
			if out[i].Err = err; err == nil { // else it may be under way still
				out[i].Outcome = o.outcome
				if !o.sentAt.IsZero() {
					out[i].Waited = o.sentAt.Sub(began)
				}
			}
			wait.Done()
		}
		s.batcherNow(o).submit(o)
	}
	wait.Wait() // every batch ends with its budget
	return out
}
