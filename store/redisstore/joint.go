package redisstore

import (
	"context"

	"github.com/ashfaqjani916/gotsem/store"
)

// AcquireAll implements store.Joint: one call of joint.lua, which goes by a batch as others
// do, where all ids share a server, or on a Cluster a slot. Leases of the same ids are asked
// for together.
//
// Such an operation is that of the first id, and has those of the further ones. In a call
// it stands in the group of the first, and they stand in the groups of theirs, in the same
// order.
func (s *Store) AcquireAll(ctx context.Context, rs []*store.Request) ([]store.Decision, error) {
	for _, r := range rs {
		if err := s.check(ctx, r.ID, r.SlotID); err != nil {
			return nil, err
		}
		if err := r.Check(); err != nil {
			return nil, err
		}
	}
	o := s.part(rs[0])
	for _, r := range rs[1:] {
		o.also = append(o.also, s.part(r))
	}
	if !s.codec.oneCall(o) {
		s.freeAll(o)
		return nil, store.ErrApart
	}
	left, err := s.do(ctx, o)
	var ds []store.Decision
	if !left {
		if err == nil {
			ds = o.decisions()
		}
		s.freeAll(o)
	}
	if err != nil && isHalfway(err) { // what it has done so far is undone
		for _, r := range rs {
			again := s.op(release, r.ID, r.SlotID, r.Budget)
			again.grace, again.async = r.Grace.Milliseconds(), func(_, _ string, _ error) {}
			s.batcherNow(again).submit(again)
		}
	}
	return ds, err
}

// part is the operation of one id.
func (s *Store) part(r *store.Request) *op {
	o := s.op(joint, r.ID, r.SlotID, r.Budget)
	o.weight, o.limit, o.ttl, o.owner = int64(r.Weight), int64(r.Limit), r.TTL.Milliseconds(), r.Owner
	o.firstAttempt, o.grace, o.outage = r.FirstAttempt, s.exec.graces.of(r.Grace), r.OutageFor.Milliseconds()
	if r.Share > 0 && r.Share < store.WholeShare {
		o.queue = int64(-r.Share)
	}
	s.exec.graces.note(r.Grace)
	return o
}

// freeAll is free, for an operation and what belongs to it.
func (s *Store) freeAll(o *op) {
	for _, p := range o.also {
		s.free(p)
	}
	s.free(o)
}

// oneCall reports whether the ids of o can go into one call.
func (cd *codec) oneCall(o *op) bool {
	first := cd.callKey(o)
	for _, p := range o.also {
		if cd.callKey(p) != first {
			return false
		}
	}
	return true
}

// decisions are those about the ids of o: up to the one that refuses, or all.
func (o *op) decisions() []store.Decision {
	if o.refusal > 0 { // of those before it there is nothing to say
		ds := make([]store.Decision, o.refusal)
		ds[o.refusal-1] = o.decision
		return ds
	}
	ds := append(make([]store.Decision, 0, 1+len(o.also)), o.decision)
	for _, p := range o.also {
		ds = append(ds, p.decision)
	}
	return ds
}

// alike reports whether other asks for the same as o, but for the slots.
func (o *op) alike(other *op) bool {
	same := o.id == other.id && o.weight == other.weight && o.limit == other.limit && o.ttl == other.ttl && o.queue == other.queue &&
		o.plain == other.plain && o.firstAttempt == other.firstAttempt && o.owner == other.owner && o.grace == other.grace && len(o.also) == len(other.also)
	for i := range o.also {
		same = same && o.also[i].alike(other.also[i])
	}
	return same
}

// behind has o stand behind the last of its group, and what belongs to it likewise.
func (o *op) behind(last *op) {
	last.next = o
	for i, p := range o.also {
		p.next, p.due = nil, o.due
		last.also[i].next = p
	}
}

// joint makes a group of the first of its kind in c, and one of each further id.
func (c *call) joint(o *op) {
	c.groups = append(c.groups, o)
	for _, p := range o.also {
		p.next, p.due = nil, o.due
		c.groups = append(c.groups, p)
	}
}

// readJoint reads what joint.lua answers.
func (cd *codec) readJoint(c *call, r *reply, rest []*op) []*op {
	leases := c.groups[0]
	if len(r.list) == 1 && r.err == nil {
		return leases.lateTo(rest)
	}
	var refused []int64 // by which id, from 1
	for range leases.group() {
		refused = append(refused, r.number())
	}
	o := leases
	for _, k := range refused {
		if anew := k > 0 && r.refusedAt(o, k); anew {
			rest = append(rest, o)
		}
		o = o.next
	}
	granted := false
	for _, k := range refused {
		granted = granted || k == 0
	}
	var highest uint64
	for _, g := range c.groups {
		if !granted || r.err != nil {
			break
		}
		limit := int(r.number())
		for i, o := 0, g; o != nil; i, o = i+1, o.next {
			if refused[i] == 0 {
				o.refusal, o.decision = 0, store.Decision{Outcome: store.Granted, Active: int(r.number()), Limit: limit, Fence: uint64(r.number())}
				highest = max(highest, o.decision.Fence)
			}
		}
	}
	for i, o := 0, leases; o != nil; i, o = i+1, o.next {
		if o.err = r.err; o.err == nil && refused[i] == 0 {
			o.err = c.unacked
		}
	}
	if c.strict && highest > 0 {
		cd.clocks.gave(c.slot, highest)
	}
	return rest
}

// refusedAt reads why the k-th id of o refuses. anew: o is to be asked again.
func (r *reply) refusedAt(o *op, k int64) (anew bool) {
	o.refusal = min(int(k), 1+len(o.also))
	n := r.number()
	if n == acquireAgain {
		anew, n = o.askAnew(), recoveringNumber
	}
	o.decision = store.Decision{
		Outcome: outcomes[uint64(n)%uint64(len(outcomes))], Active: int(r.number()), Limit: int(r.number()), Waiting: int(r.number()), RetryIn: ms(r.number()),
	}
	return anew && r.err == nil
}
