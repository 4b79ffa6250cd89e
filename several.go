package gotsem

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// maxLevels is how many ids one lease may have.
const maxLevels = 8

// furtherQueue is how many may wait for a further id where nothing else is said: who
// stands there has passed a narrower limit, and is bounded by it.
const furtherQueue = 1000

// Also asks for slots of a further id, as parts of the same lease: the lease is held when
// all of its ids are, is renewed, lost and released as one. opts may be a Weight. A call
// has at most 8 ids, each once.
//
// The ids are taken in the order listed, which is to be from the narrowest limit to the
// widest, and the same in all calls of all processes: the key, then the tenant, then all.
// Acquire waits for one id at a time, in a new place of its line, and meanwhile holds
// those before it. Two calls that list the same two ids in different orders could wait
// for each other: within a process the second order is refused with ErrOrder.
//
// Which id refused, FullError.ID and FullError.Level say. docs/limits.md says which ids
// to list, and how long their lines should be.
func Also(id string, opts ...Option) Option {
	o := Option{kind: optAlso, id: id, weight: 1}
	for _, opt := range opts {
		if opt.kind == optWeight {
			o.weight = opt.weight
		} else {
			o.kind = optAlsoBad
		}
	}
	return o
}

var errAlso = errors.New("gotsem: Also takes no option but Weight: the others are of the whole call")

// level is one of the ids of a call.
type level struct {
	id     string
	weight int
	limit  int
	queue  int // how many may wait for it; 0: this call does not wait
}

// severalCall is one call that asks for several ids. It is as if Acquire were called for
// each, in the order listed: so what holds for one id holds for each of them. It adds
// that they are held together.
type severalCall struct {
	s      *Semaphore
	call   callOptions
	seen   *observation
	slotID string // the same at all levels, but for those taken again
	levels []level
	began  time.Duration
	ends   time.Duration // by MaxWait
	asked  int           // levels that were asked for at least once
	waits  bool          // in line, where there is one
	apart  bool          // the store takes the ids one by one

	parked   []*Lease // of the levels passed, in their order
	admitted []*Lease // of further levels, by Outage Local, all at once
}

// acquireAll takes a lease of id and of the further ones of c.
func (s *Semaphore) acquireAll(ctx context.Context, id string, c callOptions, waits bool, seen *observation) (*Lease, error) {
	v := &severalCall{s: s, call: c, seen: seen, waits: waits, apart: s.gate.joint == nil, ends: math.MaxInt64}
	if err := v.plan(ctx, id, c, waits); err != nil {
		return nil, err
	}
	s.listen()
	v.slotID = s.slotID()
	if v.began = s.now(); c.maxWait < v.ends-v.began {
		v.ends = v.began + c.maxWait
	}
	for {
		if s.closed.Load() { // whose leases have ended: they are not taken again
			v.giveBack(ctx, 0)
			return nil, ErrClosed
		}
		at, err := v.together(ctx, len(v.levels))
		if err == nil && at < len(v.levels) {
			var lease *Lease
			if lease, err = v.take(ctx, at); lease != nil {
				v.parked = append(v.parked, lease)
			}
		}
		switch lost := v.lost(); {
		case ctx.Err() == nil && lost < len(v.parked):
			// Those beyond it go back too: who waits holds narrower levels only.
			s.stats.retaken.Add(1)
			v.giveBack(ctx, lost)
			v.slotID, v.asked = s.slotID(), lost // what releases the lost one must not release this
		case err == nil && ctx.Err() != nil:
			err = fmt.Errorf("gotsem: %q: granted when its ctx was over, and released: %w", v.levels[min(at, len(v.levels)-1)].id, ctx.Err())
			fallthrough
		case err != nil:
			v.giveBack(ctx, 0)
			return nil, v.late(atLevel(err, at))
		case len(v.parked) == len(v.levels):
			return v.link(ctx), nil
		}
	}
}

// plan makes the levels of c, and refuses what no store need be asked about.
func (v *severalCall) plan(ctx context.Context, id string, c callOptions, waits bool) error {
	v.levels = append(make([]level, 0, 1+len(c.also)), level{id: id, weight: c.weight})
	for _, o := range c.also {
		if o.kind == optAlsoBad {
			return fmt.Errorf("%w (%q)", errAlso, o.id)
		}
		v.levels = append(v.levels, level{id: o.id, weight: o.weight})
	}
	if n := len(v.levels); n > maxLevels {
		return fmt.Errorf("%w: %q and %d others: at most %d", ErrIDs, id, n-1, maxLevels)
	}
	for i := range v.levels {
		l := &v.levels[i]
		if slices.ContainsFunc(v.levels[:i], func(other level) bool { return other.id == l.id }) {
			return fmt.Errorf("%w: %q is listed twice: give it the weight of both", ErrIDs, l.id)
		}
		var err error
		at := c
		at.weight = l.weight
		if l.limit, err = v.s.admissible(ctx, l.id, at, !waits); err != nil {
			return atLevel(err, i)
		}
		if waits {
			if l.queue, err = v.s.queueOf(ctx, l.id, l.limit, i); err != nil {
				return err
			}
		}
	}
	return v.s.order.check(v.levels)
}

// together takes the levels up to that one which are not taken yet in one step, if the
// store can and there is room at all of them. It returns up to which the levels are taken:
// the next is to be asked for by itself, since it is full, or since the store cannot. An
// error is final.
func (v *severalCall) together(ctx context.Context, upTo int) (at int, err error) {
	s := v.s
	at = len(v.parked)
	if v.apart || upTo-at < 2 || v.ended(ctx) {
		return at, nil
	}
	rs, marks := make([]*store.Request, 0, upTo-at), make([]uint64, 0, upTo-at)
	for i, l := range v.levels[at:upTo] {
		if i > 0 && s.gate.server(l.id) != s.gate.server(rs[0].ID) {
			v.apart = true
			return at, nil
		}
		r := &store.Request{ID: l.id, SlotID: v.slotID, Weight: l.weight, Limit: l.limit, TTL: s.opt.TTL, Owner: s.owner,
			Grace: s.opt.Grace, FirstAttempt: at+i >= v.asked, OutageFor: s.local.unreportedOutage(l.id)}
		s.classify(r, v.call)
		rs, marks = append(rs, r), append(marks, s.known.mark(l.id))
	}
	sent := s.now()
	ds, err := s.gate.acquireAll(ctx, rs)
	switch {
	case errors.Is(err, store.ErrApart):
		v.apart = true
		return at, nil
	case err != nil: // the next is asked for by itself, which finds out what that means
		v.apart = true
		if mayHaveArrived(err) {
			for _, r := range rs {
				s.gate.backlog.add(r.ID, r.SlotID, true)
			}
			v.slotID = s.slotID() // what releases those must not release the next
		}
		return at, nil
	}
	for i := range ds {
		if i == len(ds)-1 || ds[i].Outcome == store.Granted {
			s.local.learn(rs[i], ds[i])
		}
	}
	last := len(ds) - 1
	if d := ds[last]; d.Outcome != store.Granted {
		return v.refusedTogether(ctx, at+last, rs[last], d, marks[last])
	}
	v.asked = max(v.asked, upTo)
	now := s.now()
	for i, d := range ds {
		lease := s.newLease(ctx, rs[i], byStore, d, sent)
		lease.part = true
		s.keep(lease, now)
		v.parked = append(v.parked, lease)
	}
	return upTo, nil
}

// refusedTogether is what follows when the level there had no room: the end of a call
// that does not wait. One that does takes those before it, and stands in line for that.
func (v *severalCall) refusedTogether(ctx context.Context, there int, r *store.Request, d store.Decision, mark uint64) (at int, err error) {
	waiting := d.Outcome == store.Full || d.Outcome == store.Recovering
	if !v.waits || !waiting || v.levels[there].queue <= 0 {
		return there, atLevel(v.s.refusal(&request{Request: *r, mark: mark}, d, 0), there)
	}
	if _, err := v.together(ctx, there); err != nil {
		return there, err
	}
	return len(v.parked), nil
}

// ended reports whether the call's time is over.
func (v *severalCall) ended(ctx context.Context) bool { return ctx.Err() != nil || v.s.now() >= v.ends }

// take takes one level, by the ways in which a call for one id does.
func (v *severalCall) take(ctx context.Context, at int) (*Lease, error) {
	s, l := v.s, v.levels[at]
	if i := slices.IndexFunc(v.admitted, func(a *Lease) bool { return a.id == l.id }); i >= 0 {
		lease := v.admitted[i]
		v.admitted = slices.Delete(v.admitted, i, i+1)
		return lease, nil
	}
	r := s.plainRequest(l.id, l.weight, l.limit)
	defer s.requests.Put(r)
	defer func() { r.part, r.seen = nil, nil }()
	r.SlotID, r.part = v.slotID, v
	r.FirstAttempt, r.seen = at >= v.asked, v.seen
	v.asked = max(v.asked, at+1)
	left := v.ends - s.now()
	if l.queue > 0 && left > 0 {
		r.Queue = l.queue
		s.classify(&r.Request, v.call)
		// Whoever loses a level that it has passed need not wait for those beyond.
		waiting, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		for _, p := range v.parked {
			defer context.AfterFunc(p.Context(), func() { cancel(errPassedLost) })()
		}
		return s.wait(waiting, r, left)
	}
	s.classify(&r.Request, v.call)
	return s.try(ctx, r)
}

// errPassedLost ends the wait for a level when one before it was lost.
var errPassedLost = errors.New("gotsem: a level before it was lost")

// lost returns the first level passed that is not held any more, or how many were passed.
func (v *severalCall) lost() int {
	for i, l := range v.parked {
		if l.look(); l.state.Load() != held {
			return i
		}
	}
	return len(v.parked)
}

// giveBack releases the levels passed from that one on, and what was admitted ahead.
func (v *severalCall) giveBack(ctx context.Context, from int) {
	var leases []*Lease
	for _, l := range append(v.parked[from:], v.admitted...) {
		if l.end(released) {
			leases = append(leases, l)
		}
	}
	v.parked, v.admitted = v.parked[:from], nil
	_ = v.s.releaseAll(ctx, leases) // what fails here is released later
}

// further are the requests for the levels beyond that id, for an outage policy that
// admits to all of them or to none.
func (v *severalCall) further(id string) (rs []store.Request) {
	at := slices.IndexFunc(v.levels, func(l level) bool { return l.id == id })
	for _, l := range v.levels[at+1:] {
		r := store.Request{ID: l.id, Weight: l.weight, Limit: l.limit, Queue: l.queue}
		v.s.classify(&r, v.call) // who waits has the whole limit there too
		rs = append(rs, r)
	}
	return rs
}

// late has a refusal say that MaxWait was over, which an earlier level may have used up.
func (v *severalCall) late(err error) error {
	full, ok := err.(*FullError)
	if now := v.s.now(); ok && v.waits && now >= v.ends && full.waited == 0 && !full.line {
		own := *full
		own.waited = now - v.began
		return &own
	}
	return err
}

// atLevel has a FullError say at which level it is.
func atLevel(err error, at int) error {
	if full, ok := err.(*FullError); ok && at > 0 {
		own := *full // the one that is remembered is shared
		own.Level = at
		return &own
	}
	return err
}

// link makes one lease of those of all levels.
func (v *severalCall) link(ctx context.Context) *Lease {
	s, all := v.s, &levels{leases: v.parked, since: v.s.now()}
	s.stats.held.Add(1)
	if all.openly() {
		s.stats.failedOpen.Add(1)
	} else {
		s.stats.granted.Add(1)
	}
	if slices.ContainsFunc(all.leases, func(l *Lease) bool { return l.basis.Load() == byLocal }) {
		s.stats.local.Add(1)
	}
	for _, l := range all.leases {
		l.mu.Lock()
		l.parent = ctx // of this call, and not of the wait for one level
		l.mu.Unlock()
		l.with.Store(all)
	}
	for _, l := range all.leases { // one may have been lost a moment ago, by itself
		if state := l.state.Load(); state != held {
			all.end(l)
			if state == lost {
				all.lose(l)
			}
		}
	}
	s.renewer.align(all.leases)
	all.leases[0].watch()
	if all.over.Load() { // it has ended before there was anything to stop
		all.leases[0].stopWatches()
	}
	return all.leases[0]
}
