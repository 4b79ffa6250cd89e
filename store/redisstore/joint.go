package redisstore

import (
	"context"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// AcquireAll implements store.Joint: one call of joint.lua, which does not go by a batch,
// where all ids share a server, or on a Cluster a slot.
func (s *Store) AcquireAll(ctx context.Context, rs []*store.Request) ([]store.Decision, error) {
	ops := make([]*op, len(rs))
	for i, r := range rs {
		if err := s.check(ctx, r.ID, r.SlotID); err != nil {
			return nil, err
		}
		if err := r.Check(); err != nil {
			return nil, err
		}
		s.exec.graces.note(r.Grace)
		ops[i] = s.part(r)
	}
	budget := ops[0].budget
	bounded, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	for _, o := range ops {
		if o.due, _ = bounded.Deadline(); s.client.perID {
			return nil, store.ErrApart
		}
	}
	var ds []store.Decision
	var err error
	if s.client.ctxBound {
		ds, err = s.exec.joint(bounded, ops)
	} else { // what is left behind has its ops to itself: none is used again
		ds, err = aside(bounded, &s.client.left, func(ctx context.Context) ([]store.Decision, error) { return s.exec.joint(ctx, ops) }, nil)
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
	o := &op{question: question{
		verb: joint, id: r.ID, slot: r.SlotID, owner: r.Owner, budget: r.Budget, firstAttempt: r.FirstAttempt,
		weight: int64(r.Weight), limit: int64(r.Limit), ttl: r.TTL.Milliseconds(),
		grace: s.exec.graces.of(r.Grace), outage: r.OutageFor.Milliseconds(),
	}}
	if o.budget <= 0 {
		o.budget = defaultBudget
	}
	if r.Share > 0 && r.Share < store.WholeShare {
		o.queue = int64(-r.Share)
	}
	return o
}

// joint has ops decided upon in one call. It is made again where keys turn out to go by
// cluster slot, where the clock says something odd, and where it came too late.
func (e *executor) joint(ctx context.Context, ops []*op) ([]store.Decision, error) {
	if err := e.learn(ctx); err != nil {
		return nil, classify(err)
	}
	for range 1 + maxTries {
		c, apart := e.codec.jointCall(ops)
		if apart {
			return nil, store.ErrApart
		}
		err := e.sendJoint(ctx, c)
		switch {
		case e.crossed([]*call{c}):
			continue
		case isMoving(err):
			return nil, store.ErrApart // by keys one at a time, as far as that goes
		case err != nil:
			e.client.reloadOn(err)
			return nil, classify(err)
		}
		ds, wakeups, again, err := e.codec.readJoint(c, ops)
		e.wakeAll(wakeups)
		if err == nil {
			e.learnGrace(ctx, []*call{c})
			e.register(ctx, []*call{c})
		}
		if !again || ctx.Err() != nil {
			return ds, err
		}
	}
	return nil, errClock
}

// jointCall is the call of ops. apart: they do not go into one.
func (cd *codec) jointCall(ops []*op) (c *call, apart bool) {
	c = &call{callKey: cd.callKey(ops[0]), groups: ops}
	for _, o := range ops {
		if cd.callKey(o) != c.callKey {
			return nil, true
		}
		c.strict = c.strict || o.grace > 0
		c.outage = max(c.outage, o.outage)
	}
	return c, false
}

// sendJoint sends c, by the steps of a batch.
func (e *executor) sendJoint(ctx context.Context, c *call) error {
	f := e.frame()
	defer e.recycle(f)
	f.calls = append(f.calls[:0], c)
	err := e.resendBroken(ctx, f, e.send(ctx, f, f.calls, false))
	if err = e.loadScripts(ctx, f, err); err == nil && c.unacked != nil {
		err = c.unacked
	}
	return err
}

// readJoint reads what joint.lua answers. again: the call is to be made anew.
func (cd *codec) readJoint(c *call, ops []*op) (ds []store.Decision, wakeups []any, again bool, err error) {
	list, err := c.cmd.Slice()
	if err != nil {
		return nil, nil, false, err
	}
	r := &reply{name: "joint", list: list}
	if now := r.number() / callNumbers; now != 0 {
		cd.clocks.read(c.slot, now, c.sent, time.Now(), c.told)
	}
	if len(list) == 1 { // it came too late
		return nil, nil, true, errClock
	}
	if refuses := r.number(); refuses > 0 && int(refuses) <= len(ops) {
		n := r.number()
		if n == acquireAgain {
			again, n = true, recoveringNumber
		}
		ds = make([]store.Decision, refuses)
		d := &ds[refuses-1]
		*d = store.Decision{Outcome: outcomes[uint64(n)%uint64(len(outcomes))], Active: int(r.number()), Limit: int(r.number()), Waiting: int(r.number()), RetryIn: ms(r.number())}
		return ds, r.list[min(r.at, len(r.list)):], again, r.err
	}
	var highest uint64
	for range ops {
		d := store.Decision{Outcome: store.Granted, Active: int(r.number()), Limit: int(r.number()), Fence: uint64(r.number())}
		highest = max(highest, d.Fence)
		ds = append(ds, d)
	}
	if c.strict && r.err == nil {
		cd.clocks.gave(c.slot, highest)
	}
	return ds, r.list[min(r.at, len(r.list)):], false, r.err
}
