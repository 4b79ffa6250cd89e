package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

// durable is how many replicas must acknowledge a grant, and within what time.
type durable struct {
	replicas int
	wait     time.Duration
}

// executor carries out the operations of a batch: it has them encoded, sends the calls,
// sees to what may go wrong on the way, and has the replies decoded.
type executor struct {
	codec    *codec
	client   *client
	durable  durable
	wake     func(string) // is told whom a script names
	resent   resent
	graces   graces
	token    string
	registry registry
	unsure   atomic.Bool // whether keys go by cluster slot is to be learned: see form.go
	frames   sync.Pool   // of *frame
}

// maxRounds bounds how often operations are sent on, each time in new calls: once since
// keys turn out to go by cluster slot, once with the keys of meta, once by the verb that
// is not plain, and maxTries since the server's clock says something odd. Nothing else
// has an operation asked anew, so that the last round leaves none.
const maxRounds = 1 + 1 + 1 + 1 + maxTries

// exec carries out ops, and gives each its answer. Within a round there is a bound too:
// calls are sent, once more on a new connection, once more as text, and once more id by
// id.
func (e *executor) exec(ctx context.Context, ops []*op) {
	if err := e.learn(ctx); err != nil {
		for _, o := range ops {
			o.err = classify(err)
		}
		return
	}
	f := e.frame()
	defer e.recycle(f)
	for n := range maxRounds {
		rest := &f.rest[n%2] // the other is what is being sent
		f.group(e.codec, ops)
		*rest = e.round(ctx, f, ops, (*rest)[:0])
		if ops = *rest; len(ops) == 0 {
			return
		}
	}
	for _, o := range ops {
		o.err = errClock
	}
}

// round sends the calls of f, which are those of ops, and adds the operations that are to
// go on by others to rest.
func (e *executor) round(ctx context.Context, f *frame, ops, rest []*op) []*op {
	err := e.send(ctx, f, f.calls, false)
	if e.crossed(f.calls) {
		for _, c := range f.calls {
			c.each(func(o *op) { o.firstAttempt = false })
		}
		return append(rest, ops...)
	}
	err = e.resendBroken(ctx, f, err)
	err = e.loadScripts(ctx, f, err)
	calls := append(f.calls, e.splitByID(ctx, f)...)
	for _, c := range calls {
		switch {
		case c.answered:
		case c.verb == joint && (isMoving(c.cmd.Err()) || isCrossSlot(c.cmd.Err())):
			for o := c.groups[0]; o != nil; o = o.next {
				o.err = store.ErrApart // by keys one at a time, as far as that goes
			}
		case isMoving(c.cmd.Err()):
			e.moving(ctx, c)
		default:
			if c.verb == renew {
				c.each(func(o *op) { o.sentAt = c.sent })
			}
			var wakeups []any
			rest, wakeups = e.codec.read(c, rest)
			e.wakeAll(wakeups)
		}
	}
	switch {
	case err != nil:
		e.client.reloadOn(err)
	case len(rest) == 0: // what goes on may have to make the marker first
		e.learnGrace(ctx, f.calls)
		e.register(ctx, f.calls)
	}
	return rest
}

// resendBroken sends calls again whose connection ended. Redis had closed it, most often.
// What was carried out already is answered as done, since asking twice with one slot id
// is asking once.
func (e *executor) resendBroken(ctx context.Context, f *frame, err error) error {
	if !e.codec.atMostOnce || !isBroken(err) || ctx.Err() != nil {
		return err
	}
	for _, c := range f.calls {
		c.each(func(o *op) { o.firstAttempt = false })
	}
	e.sentTwice(f.calls)
	return e.send(ctx, f, f.calls, false)
}

// sentTwice notes what takes among calls that more than one sending may carry out.
func (e *executor) sentTwice(calls []*call) {
	for _, c := range calls {
		c.each(func(o *op) {
			if o.verb.takes() {
				e.resent.add(asking{o.id, o.slot}, o.due)
			}
		})
	}
}

// loadScripts sends the text of scripts that are gone: after a restart, a fail-over, a
// SCRIPT FLUSH. Nothing of such a call was run.
func (e *executor) loadScripts(ctx context.Context, f *frame, err error) error {
	var gone []*call
	for _, c := range f.calls {
		if isNoScript(c.cmd.Err()) {
			gone = append(gone, c)
		}
	}
	if len(gone) == 0 {
		return err
	}
	return e.send(ctx, f, gone, true)
}

// splitByID sends calls anew, id by id, that Redis refuses for all of their ids. A script
// stops at the first id that it fails on, such as a key of another type, and one caller's
// bad luck is its own.
func (e *executor) splitByID(ctx context.Context, f *frame) (split []*call) {
	for _, c := range f.calls {
		if err := c.cmd.Err(); err != nil && c.verb != joint && len(c.backs)+len(c.groups) > 1 && (isConfig(err) || isMoving(err)) {
			split = c.split(split)
		}
	}
	if len(split) > 0 {
		_ = e.send(ctx, f, split, true) // each has its own error
	}
	return split
}

// wakeAll passes on whom a reply names.
func (e *executor) wakeAll(wakeups []any) {
	for _, w := range wakeups {
		if text, ok := w.(string); ok {
			e.wake(text)
		}
	}
}

// frame returns one from the pool.
func (e *executor) frame() *frame {
	f := e.frames.Get().(*frame)
	f.args, f.nums = f.args[:0], f.nums[:0]
	return f
}

// recycle has a frame used again.
func (e *executor) recycle(f *frame) {
	if e.client.shared {
		f.args, f.nums = nil, nil // its hooks may still look at them
	}
	e.frames.Put(f)
}

// send sends calls and waits for their answers. Its error is that of the first that
// failed; each has its own.
func (e *executor) send(ctx context.Context, f *frame, calls []*call, text bool) error {
	for _, c := range calls {
		c.cmd = e.codec.command(ctx, f, c, text)
	}
	broken := e.client.broken.Load()
	err := e.deliver(ctx, calls)
	if e.client.broken.Load() != broken { // by these calls or by others: a release more does no harm
		e.sentTwice(calls)
	}
	return err
}

// deliver is send, for calls that have their commands.
func (e *executor) deliver(ctx context.Context, calls []*call) error {
	if e.durable.replicas > 0 {
		return e.sendDurably(ctx, calls)
	}
	to := e.client.batches()
	if len(calls) == 1 {
		c := calls[0]
		_ = to.Process(ctx, c.cmd)
		c.match()
		return c.cmd.Err()
	}
	pipe := to.Pipeline()
	for _, c := range calls {
		_ = pipe.Process(ctx, c.cmd) // queued; it fails in Exec
	}
	_, err := pipe.Exec(ctx)
	for _, c := range calls {
		if c.match(); err == nil {
			err = c.cmd.Err()
		}
	}
	return err
}

// sendDurably sends calls and has the grants among them acknowledged by replicas. WAIT
// speaks of the connection that it is sent on, so it goes in the same pipeline, and on
// a Cluster every call goes to its node by itself.
func (e *executor) sendDurably(ctx context.Context, calls []*call) (first error) {
	cluster, _ := e.client.UniversalClient.(*redis.ClusterClient)
	for _, c := range calls {
		pipe := e.client.batches().Pipeline()
		if cluster != nil {
			node, err := cluster.MasterForKey(ctx, *c.anyOp().holders(e.codec.prefix, false))
			if err != nil {
				c.cmd.SetErr(err)
				first = cmp.Or(first, err)
				continue
			}
			pipe = node.Pipeline()
		}
		_ = pipe.Process(ctx, c.cmd)
		var acknowledged *redis.Cmd
		if c.verb == acquire || c.verb == joint || c.lease {
			acknowledged = pipe.Do(ctx, "wait", e.durable.replicas, e.durable.wait.Milliseconds())
		}
		_, err := pipe.Exec(ctx)
		c.match()
		first = cmp.Or(first, err, c.cmd.Err())
		if acknowledged != nil && c.cmd.Err() == nil {
			if n, err := acknowledged.Int(); err != nil {
				c.unacked = classify(err)
			} else if n < e.durable.replicas {
				c.unacked = fmt.Errorf("%w: %d of %d replicas acknowledged it within %v", store.ErrNotReplicated, n, e.durable.replicas, e.durable.wait)
			}
		}
	}
	return first
}

// run runs a script on ids of one cluster slot, mostly one, alone: for what is asked seldom.
func (e *executor) run(ctx context.Context, sc *script, ids []string, grace int64, args ...any) ([]any, error) {
	if err := e.learn(ctx); err != nil {
		return nil, classify(err)
	}
	var c *call
	for range 2 { // keys can turn out to go by cluster slot, once
		names, slot := make([]string, 4*len(ids), 4*len(ids)+1), uint16(0)
		for i, id := range ids {
			k := keysOf(e.codec.prefix, id)
			names[i], names[len(ids)+i], names[2*len(ids)+i], names[3*len(ids)+i], slot = k.s, k.m, k.q, k.l, k.slot
		}
		c = e.codec.single(callKey{verb: release, slot: slot, bySlot: e.codec.slotted()}, grace > 0)
		all := append(make([]any, 0, 2+len(args)), *e.codec.header(c))
		if sc != usageScript && sc != listScript && sc != stateScript { // they hand on no room
			all = append(all, grace)
		}
		c.cmd = e.eval(ctx, sc, append(names, *e.codec.marker(slot)), append(all, args...)...)
		if !e.crossed([]*call{c}) {
			break
		}
	}
	c.match()
	reply, err := c.cmd.Slice()
	switch {
	case isMoving(err):
		return nil, errMoving(ids[0], err)
	case err != nil:
		e.client.reloadOn(err)
	}
	return reply, classify(err)
}

// single returns a call that is not one of a batch.
func (cd *codec) single(k callKey, strict bool) *call {
	return &call{callKey: k, strict: strict, sent: time.Now(), number: int64(cd.calls.Add(1) % callNumbers), latest: never}
}

// eval runs a script by its name, and by its text if Redis does not know it.
func (e *executor) eval(ctx context.Context, sc *script, names []string, args ...any) (cmd *redis.Cmd) {
	got, err := aside(ctx, &e.client.left, func(ctx context.Context) (*redis.Cmd, error) {
		cmd := e.client.EvalSha(ctx, sc.sha, names, args...)
		if isNoScript(cmd.Err()) {
			cmd = e.client.Eval(ctx, sc.text, names, args...)
		}
		return cmd, nil
	}, nil)
	if err != nil {
		got = redis.NewCmd(ctx)
		got.SetErr(err)
	}
	return got
}
