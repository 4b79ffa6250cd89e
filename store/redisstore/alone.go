package redisstore

import (
	"context"
	"errors"
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

func errMoving(id string, cause error) error {
	return fmt.Errorf("%w: %q: %w", store.ErrMoving, id, cause)
}

// moving answers the ops of a call that came to nothing since its slot is being moved.
func (e *executor) moving(ctx context.Context, c *call) {
	cause := c.cmd.Err()
	c.answered = true
	c.each(func(o *op) {
		if o.err = e.alone(ctx, o); o.err == errSeveral {
			o.err = errMoving(o.id, cause)
		}
	})
}

// errSeveral is what comes of an operation for which one key is not enough.
var errSeveral = errors.New("redisstore: it takes several keys")

// keywise is an operation done by commands that name one key each.
type keywise struct {
	*executor
	op   *op
	keys *keys
}

// alone does what o asks by such commands.
func (e *executor) alone(ctx context.Context, o *op) error {
	w := keywise{e, o, o.names(e.codec.prefix)}
	var err error
	switch {
	case o.verb.gives():
		err = w.give(ctx)
	case o.verb == renew:
		err = w.keep(ctx)
	case o.weight != 1 || o.ticket > 0 || o.queue < 0:
		return errSeveral
	default:
		err = w.take(ctx)
	}
	if isMoving(err) {
		return errSeveral
	}
	return classify(err)
}

func (w *keywise) ask(ctx context.Context, key string, args ...any) *redis.Cmd {
	return w.eval(ctx, aloneScript, []string{key}, args...)
}

// marker is the key of the marker that the id goes by.
func (w *keywise) marker() string { return *w.codec.marker(w.keys.slot) }

func (w *keywise) give(ctx context.Context) error {
	freed, err := w.ask(ctx, w.keys.s, "give", w.op.slot).Int()
	if err != nil {
		return err
	}
	waited, err := w.ask(ctx, w.keys.m, "gone", w.op.slot).Int()
	if err == nil && waited == 1 {
		err = w.client.ZRem(ctx, w.keys.q, w.op.slot).Err()
	}
	w.op.freed = err == nil && (freed == 1 || waited == 1)
	return err
}

func (w *keywise) keep(ctx context.Context) error {
	there, err := w.ask(ctx, w.keys.s, "keep", w.op.slot, w.op.ttl).Int()
	if err == nil && there == 0 {
		err = errSeveral
	}
	if err != nil {
		return err
	}
	kept, err := w.ask(ctx, w.keys.m, "kept", w.op.ttl).Int()
	if err == nil && kept == 1 { // the marker must not say sooner that there is none
		err = w.ask(ctx, w.marker(), "mark", w.op.ttl, 0).Err()
	}
	if err == nil {
		w.op.outcome = store.Renewed
	}
	return err
}

// take takes one slot where nobody waits, by what M says of weights and L of the limit.
func (w *keywise) take(ctx context.Context) error {
	limit, extra, err := w.room(ctx)
	if err != nil {
		return err
	}
	if w.op.grace > 0 {
		left, err := w.look(ctx, w.keys.slot, w.op.grace)
		if err != nil {
			return err
		}
		if left > 0 {
			w.op.decision = store.Decision{Outcome: store.Recovering, Limit: int(limit), RetryIn: left}
			return nil
		}
	}
	fence, err := w.client.HGet(ctx, w.marker(), "f").Int64()
	if err != nil && err != redis.Nil {
		return err
	}
	reply, err := w.ask(ctx, w.keys.s, "take", w.op.slot, w.op.ttl, limit-extra, fence).Int64Slice()
	if err != nil {
		return err
	}
	if len(reply) < 4 || reply[2] == 0 {
		return errSeveral
	}
	granted, active, fence, next := reply[0] == 1, reply[1], reply[2], reply[3]
	d := store.Decision{Outcome: store.Granted, Active: int(active + extra), Limit: int(limit)}
	switch {
	case granted && !w.op.plain:
		if err := w.ask(ctx, w.marker(), "mark", 0, fence).Err(); err != nil {
			return err
		}
		d.Fence = uint64(fence)
	case !granted && w.op.queue > 0:
		return errSeveral
	case !granted:
		d.Outcome, d.RetryIn = store.Full, ms(next)
	}
	w.op.decision = d
	return nil
}

// room returns the limit that counts, and what is held above the number of members of S.
func (w *keywise) room(ctx context.Context) (limit, extra int64, err error) {
	meta, err := w.client.HGet(ctx, w.keys.m, "").Result()
	if err != nil && err != redis.Nil {
		return 0, 0, err
	}
	line, err := w.client.Exists(ctx, w.keys.q).Result()
	if err == nil && line > 0 {
		err = errSeveral
	}
	if err != nil {
		return 0, 0, err
	}
	limit, err = w.client.HGet(ctx, w.keys.l, "n").Int64()
	if err == redis.Nil {
		limit, err = w.op.limit, nil
	}
	if err == nil && meta != "" {
		if _, bad := fmt.Sscan(meta, &extra); bad != nil {
			err = errSeveral
		}
	}
	return limit, extra, err
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
