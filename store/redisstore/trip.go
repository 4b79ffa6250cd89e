package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

// verb is one of the three that ride together. In a trip they go in this order, so
// that what is given back can be taken.
type verb uint8

const (
	release verb = iota
	renew
	acquire
	verbs
)

var verbScripts = [verbs]*script{release: releaseScript, renew: renewScript, acquire: acquireScript}

// question is what an operation asks. Its numbers are fields that arguments point
// to, because go-redis encodes a *string or an *int64 without an allocation of its
// own.
type question struct {
	verb verb
	id   string
	keys keys

	slot, owner                  string
	bare                         bool
	flag                         string // acquire: bare; renew: register
	weight, limit, queue, ticket int64
	ttl, keyTTL                  int64 // ms
	fence, trust, grace          int64

	budget time.Duration
	due    time.Time // when the budget is over, or the ctx if that is sooner
	hasty  bool      // it is the ctx
}

// answer is what Redis says to it.
type answer struct {
	decision store.Decision
	freed    bool
	kept     store.Kept
	err      error
}

// op is one operation on one slot id.
type op struct {
	question
	answer

	turn   chan struct{} // told once it is answered, or to lead a trip
	lead   []*op         // the trip that it leads
	gone   bool          // its caller has left
	landed bool          // it was answered
	async  func(id, slotID string, err error)
	next   *op // of the same group
	alone  [1]*op
}

// plain reports whether the acquire script may decide o at its top.
func (o *op) plain() bool { return o.bare && o.weight == 1 && o.queue <= 0 }

// call is one script call of a trip.
type call struct {
	verb   verb
	slot   uint16
	groups []*op // each the first of the ops of one id, in order
	strict bool  // the marker goes along
	ops    int
	cmd    *redis.SliceCmd
	sent   time.Time
}

// Arguments that are the same in every call.
var (
	argEval, argEvalsha = "eval", "evalsha"
	argPlain, argLease  = "p", "l"
)

// calls divides a batch into script calls: one per verb, on a Cluster one per verb
// and slot. Within a call, the ops of one id stand together.
func (s *Store) calls(batch []*op) []*call {
	if len(batch) == 1 {
		o := batch[0]
		o.next = nil
		return []*call{{verb: o.verb, slot: o.keys.slot, groups: []*op{o}, strict: o.grace > 0, ops: 1}}
	}
	type place struct {
		verb verb
		id   string
		slot uint16
	}
	var out []*call
	byPlace := make(map[place]*call, 4)
	last := make(map[string]*op, len(batch)) // the last op of an id's group in the verb at hand
	for v := range verbs {
		clear(last)
		for _, o := range batch {
			if o.verb != v {
				continue
			}
			o.next = nil
			p := place{verb: v}
			switch {
			case s.client.perID:
				p.id = o.id
			case s.client.cluster:
				p.slot = o.keys.slot
			}
			c := byPlace[p]
			if c == nil {
				c = &call{verb: v, slot: o.keys.slot}
				byPlace[p] = c
				out = append(out, c)
			}
			c.ops++
			c.strict = c.strict || o.grace > 0
			if tail := last[o.id]; tail != nil && tail.joins(o) {
				tail.next = o
			} else {
				c.groups = append(c.groups, o)
			}
			last[o.id] = o
		}
	}
	return out
}

// joins reports whether b can stand in the same group as a, of the same id.
func (a *op) joins(b *op) bool {
	switch {
	case a.grace != b.grace:
		return false
	case a.verb != acquire:
		return true
	case a.plain() != b.plain():
		return false
	}
	return !a.plain() || a.limit == b.limit && a.ttl == b.ttl
}

// command builds the command of c. text has Redis compile the script, which it
// needs after a restart or a fail-over.
func (s *Store) command(ctx context.Context, c *call, text bool) *redis.SliceCmd {
	sc := verbScripts[c.verb]
	perOp := [verbs]int{release: 1, renew: 7, acquire: 8}[c.verb]
	nums := make([]int64, 0, 1+2*len(c.groups)) // never grows: arguments point into it
	num := func(n int64) *int64 {
		nums = append(nums, n)
		return &nums[len(nums)-1]
	}
	nKeys := 4 * len(c.groups)
	if c.strict {
		nKeys++
	}
	args := make([]any, 0, 3+nKeys+1+5*len(c.groups)+perOp*c.ops)
	if text {
		args = append(args, &argEval, &sc.text)
	} else {
		args = append(args, &argEvalsha, &sc.sha)
	}
	args = append(args, num(int64(nKeys)))
	for _, g := range c.groups {
		args = append(args, &g.keys.s, &g.keys.m, &g.keys.q, &g.keys.l)
	}
	if c.strict {
		marker := markerKey(s.prefix, s.client.cluster, c.slot)
		args = append(args, &marker)
	}
	c.sent = time.Now()
	args = append(args, s.header(c))
	for _, g := range c.groups {
		n := int64(0)
		for o := g; o != nil; o = o.next {
			n++
		}
		switch {
		case c.verb != acquire:
			args = append(args, num(n), &g.grace)
		case g.plain():
			args = append(args, &argPlain, num(n), &g.limit, &g.ttl, &g.keyTTL)
		default:
			args = append(args, &argLease, num(n), &g.grace)
		}
		for o := g; o != nil; o = o.next {
			switch {
			case c.verb == release, c.verb == acquire && g.plain():
				args = append(args, &o.slot)
			case c.verb == renew:
				args = append(args, &o.slot, &o.ttl, &o.weight, &o.fence, &o.trust, &o.flag, &o.owner)
			default:
				args = append(args, &o.slot, &o.weight, &o.limit, &o.ttl, &o.queue, &o.ticket, &o.flag, &o.owner)
			}
		}
	}
	return redis.NewSliceCmd(ctx, args...)
}

// header is ARGV[1]; the prelude says what is in it.
func (s *Store) header(c *call) *string {
	sweep := 0
	if s.sweepNow(c.sent) {
		sweep = 1
	}
	if !c.strict {
		return &s.headers[sweep]
	}
	seen, echo, ago := s.clocks.header(c.slot, c.sent)
	h := s.headers[sweep]
	b := make([]byte, 0, len(h)+32)
	b = append(b, h[:len(h)-len(plainClock)]...)
	b = append(b, seen, ' ')
	b = strconv.AppendInt(b, echo, 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, ago, 10)
	h = string(b)
	return &h
}

// plainClock ends the header of a call without grace.
const plainClock = "0 0 0"

// sweepEvery is how often a process has calls that write look for lapsed slots.
// They do not count either way; looking costs a command.
const sweepEvery = 20 * time.Millisecond

func (s *Store) sweepNow(now time.Time) bool {
	t, last := now.UnixNano(), s.swept.Load()
	return t-last >= int64(sweepEvery) && s.swept.CompareAndSwap(last, t)
}

// fly makes one round trip with a batch, and answers its ops. It returns an error
// if Redis did not answer at all.
func (s *Store) fly(ctx context.Context, batch []*op) error {
	calls := s.calls(batch)
	err := s.send(ctx, calls, false)
	again := calls[:0:0]
	for _, c := range calls {
		if isNoScript(c.cmd.Err()) {
			again = append(again, c)
		}
	}
	if len(again) > 0 {
		// Its scripts are gone: after a restart, a fail-over, a SCRIPT FLUSH. Nothing
		// of the call was run.
		err = s.send(ctx, again, true)
	}
	// A script stops at the first id that it fails on, such as a key of another type.
	// One caller's bad luck is its own: the ids of such a call are asked for one by
	// one. What was done already is answered as done, since a slot id asks twice for
	// the same thing.
	var alone []*call
	for _, c := range calls {
		if e := c.cmd.Err(); e != nil && len(c.groups) > 1 && isConfig(e) {
			for _, g := range c.groups {
				n := 0
				for o := g; o != nil; o = o.next {
					n++
				}
				alone = append(alone, &call{verb: c.verb, slot: c.slot, groups: []*op{g}, strict: g.grace > 0, ops: n})
			}
			c.groups = nil
		}
	}
	if len(alone) > 0 {
		_ = s.send(ctx, alone, true)
	}
	for _, c := range calls {
		s.read(c)
	}
	for _, c := range alone {
		s.read(c)
	}
	if err != nil {
		s.client.lookAround(err)
		if isConfig(err) {
			err = nil
		}
	}
	return err
}

// send sends calls and waits for their answers. Its error is that of the first that
// failed; each has its own.
func (s *Store) send(ctx context.Context, calls []*call, text bool) error {
	for _, c := range calls {
		c.cmd = s.command(ctx, c, text)
	}
	if len(calls) == 1 {
		return s.client.Process(ctx, calls[0].cmd)
	}
	pipe := s.client.Pipeline()
	for _, c := range calls {
		_ = pipe.Process(ctx, c.cmd) // queued; it fails in Exec
	}
	_, err := pipe.Exec(ctx)
	return err
}

// read gives the answer of c to its ops.
func (s *Store) read(c *call) {
	reply, err := c.cmd.Result()
	at := 0
	number := func() int64 {
		if at >= len(reply) {
			err = fmt.Errorf("redisstore: %s answered %d values, expected more: does another version of its scripts run?", verbScripts[c.verb].name, len(reply))
			return 0
		}
		n, ok := reply[at].(int64)
		if !ok {
			err = fmt.Errorf("redisstore: %s answered %T where a number was expected", verbScripts[c.verb].name, reply[at])
		}
		at++
		return n
	}
	if err != nil {
		err = classify(err)
	} else if now := number(); c.strict && now > 0 {
		s.clocks.read(c.slot, now, c.sent, time.Now())
	}
	for _, g := range c.groups {
		var limit, waiting, lapse int64
		plain := c.verb == acquire && g.plain()
		if plain && err == nil {
			limit, waiting, lapse = number(), number(), number()
		}
		for o := g; o != nil; o = o.next {
			if o.err = err; err != nil {
				continue
			}
			switch {
			case plain:
				n := number()
				o.decision = store.Decision{Outcome: store.Granted, Active: int(n), Limit: int(limit), Waiting: int(waiting)}
				if n < 0 {
					o.decision = store.Decision{Outcome: store.Full, Active: int(-n - 1), Limit: int(limit), Waiting: int(waiting), RetryIn: ms(lapse)}
				}
			case c.verb == acquire:
				o.decision = store.Decision{
					Outcome: outcomes[number()%int64(len(outcomes))], Active: int(number()), Limit: int(number()), Waiting: int(number()),
					Place: int(number()), Fence: uint64(number()), Ticket: uint64(number()), RetryIn: ms(number()),
				}
			case c.verb == renew:
				o.kept = store.Kept(number())
			default:
				o.freed = number() == 1
			}
			o.err = err
		}
	}
	if err == nil {
		for ; at < len(reply); at++ {
			if slotID, ok := reply[at].(string); ok {
				s.ears.wake(slotID)
			}
		}
	}
}

// outcomes are the scripts' numbers.
var outcomes = [...]store.Outcome{store.Full, store.Granted, store.Waiting, store.LineFull, store.TooHeavy, store.Recovering}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
