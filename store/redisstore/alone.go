package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

// While a cluster slot is being moved from one node to another, it takes a command that
// names several keys only if all of them exist, and lie on one side: TRYAGAIN. Most keys
// of an id do not exist most of the time, and an interrupted move leaves a slot open for
// hours. So an operation that is answered so goes on by commands that name one key each;
// the client follows that wherever it is. What cannot be done so (to wait, to take more
// than one at once) is answered store.ErrMoving, and goes on when the move is over.
//
// That is not one atomic step any more. In its order nothing is granted twice: what is
// taken is decided by S alone, in one script; what is given back leaves S first. A line is
// not handed on to; its head finds out by its poll.

func isMoving(err error) bool { return redis.HasErrorPrefix(err, "TRYAGAIN") }

// moving answers the ops of a call that came to nothing since its slot is being moved.
func (e *executor) moving(ctx context.Context, c *call) {
	cause := c.cmd.Err()
	c.answered = true
	c.each(func(o *op) {
		if o.err = e.alone(ctx, o); o.err == errSeveral {
			o.err = fmt.Errorf("%w: %q: %w", store.ErrMoving, o.id, cause)
		}
	})
}

// errSeveral is what alone returns where one key is not enough.
var errSeveral = fmt.Errorf("redisstore: it takes several keys")

// alone does what o asks by commands that name one key each.
func (e *executor) alone(ctx context.Context, o *op) error {
	k := o.names(e.codec.prefix)
	ask := func(key string, args ...any) *redis.Cmd {
		return e.eval(ctx, aloneScript, []string{key}, args...)
	}
	known := func(err error) error {
		if err != nil && !isMoving(err) {
			return classify(err)
		}
		return errSeveral
	}
	switch {
	case o.verb.gives():
		freed, err := ask(k.s, "give", o.slot).Int()
		if err != nil {
			return known(err)
		}
		waited, err := ask(k.m, "gone", o.slot).Int()
		if err == nil && waited == 1 {
			err = e.client.ZRem(ctx, k.q, o.slot).Err()
		}
		if err != nil {
			return known(err)
		}
		o.freed = freed == 1 || waited == 1
		return nil
	case o.verb == renew:
		there, err := ask(k.s, "keep", o.slot, o.ttl).Int()
		if err != nil || there == 0 {
			return known(err)
		}
		kept, err := ask(k.m, "kept", o.ttl).Int()
		if err == nil && kept == 1 { // the marker must not say sooner that there is none
			err = ask(*e.codec.marker(k.slot), "mark", o.ttl, 0).Err()
		}
		if err != nil {
			return known(err)
		}
		o.outcome = store.Renewed
		return nil
	case o.weight != 1 || o.ticket != 0:
		return errSeveral
	}
	// To take one: where nobody waits, and by what M says of weights and L of the limit.
	meta, err := e.client.HGet(ctx, k.m, "").Result()
	if err != nil && err != redis.Nil {
		return known(err)
	}
	line, err := e.client.Exists(ctx, k.q).Result()
	if err != nil || line > 0 {
		return known(err)
	}
	limit := o.limit
	switch set, err := e.client.HGet(ctx, k.l, "n").Int64(); {
	case err == nil:
		limit = set
	case err != redis.Nil:
		return known(err)
	}
	var fence, extra int64
	if meta != "" {
		if _, err := fmt.Sscan(meta, &extra); err != nil {
			return errSeveral
		}
	}
	if o.grace > 0 {
		left, err := e.look(ctx, k.slot, o.grace)
		if err != nil {
			return known(err)
		}
		if left > 0 {
			o.decision = store.Decision{Outcome: store.Recovering, Limit: int(limit), RetryIn: left}
			return nil
		}
	}
	switch fence, err = e.client.HGet(ctx, *e.codec.marker(k.slot), "f").Int64(); {
	case err != nil && err != redis.Nil:
		return known(err)
	}
	reply, err := ask(k.s, "take", o.slot, o.ttl, limit-extra, fence).Int64Slice()
	if err != nil || len(reply) < 4 || reply[2] == 0 {
		return known(err)
	}
	d := store.Decision{Outcome: store.Granted, Active: int(reply[1] + extra), Limit: int(limit)}
	switch {
	case reply[0] == 1 && !o.plain:
		if err := ask(*e.codec.marker(k.slot), "mark", 0, reply[2]).Err(); err != nil {
			return known(err)
		}
		d.Fence = uint64(reply[2])
	case reply[0] == 0 && o.queue > 0:
		return errSeveral
	case reply[0] == 0:
		d.Outcome, d.RetryIn = store.Full, ms(reply[3])
	}
	o.decision = d
	return nil
}

// look asks the marker of a cluster slot for how long no grants are made.
func (e *executor) look(ctx context.Context, slot uint16, grace int64) (time.Duration, error) {
	for range 2 {
		c := e.codec.single(callKey{verb: release, slot: slot}, true)
		c.cmd = e.eval(ctx, lookScript, []string{*e.codec.marker(slot)}, *e.codec.header(c), grace)
		c.match()
		reply, err := c.cmd.Slice()
		if err != nil {
			return 0, err
		}
		if now := integer(reply, 0) / callNumbers; now != 0 {
			e.codec.clocks.read(slot, int64(now), c.sent, time.Now(), c.told)
		}
		if integer(reply, 2) == 0 {
			return ms(int64(integer(reply, 1))), nil
		}
	}
	return 0, errClock
}
