package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

// verb is one of those that ride together. In a trip they go in this order, so that
// what is given back can be taken.
type verb uint8

const (
	releaseBare verb = iota
	release
	renew
	acquireBare
	acquire
	verbs
)

var verbScripts = [verbs]*script{
	releaseBare: releaseBareScript, release: releaseScript, renew: renewScript, acquireBare: acquireBareScript, acquire: acquireScript,
}

// bare reports whether the verb is one for ids that have no meta.
func (v verb) bare() bool { return v == releaseBare || v == acquireBare }

// whole is the verb that does the same for an id that has meta.
func (v verb) whole() verb {
	switch v {
	case releaseBare:
		return release
	case acquireBare:
		return acquire
	}
	return v
}

// question is what an operation asks. Its numbers are fields that arguments point
// to, because go-redis encodes a *string or an *int64 without an allocation of its
// own.
type question struct {
	verb  verb // a trip may change it from a bare one to the whole one
	takes bool // it is one of the acquires
	id    string
	keys  keys

	slot, owner                  string
	flag                         string // acquire: bare; renew: register
	weight, limit, queue, ticket int64
	ttl, keyTTL                  int64 // ms
	fence, trust, grace          int64
	away                         int64 // ms: its caller comes back from an outage of so long

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
	again  bool          // it was asked a second time
	async  func(id, slotID string, err error)
	next   *op // of the same group
	alone  [1]*op
	solo   solo
}

// call is one script call of a trip.
type call struct {
	verb   verb
	slot   uint16
	groups []*op // each the first of the ops of one id, in order
	ops    int
	strict bool  // the marker goes along
	away   int64 // so does word of an outage
	short  error // too few replicas have acknowledged its grants
	cmd    *redis.Cmd
	sent   time.Time
	told   bool // it tells Redis that its clock jumped
}

// solo is what a trip with a single operation needs, so that it allocates nothing
// of its own.
type solo struct {
	call call
	list [1]*call
	args [20]any
	ctx  deadlineContext
}

// Arguments that are the same in every call.
var (
	argEval, argEvalsha = "eval", "evalsha"
	argYes, argNo       = yes, no
	argSmall            = [...]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
)

// calls divides a batch into script calls: one per verb, on a Cluster one per verb
// and slot. Within a call, the ops of one id stand together.
func (s *Store) calls(batch []*op) []*call {
	if len(batch) == 1 {
		o := batch[0]
		o.next = nil
		o.solo.call = call{verb: o.verb, slot: o.keys.slot, groups: batch, ops: 1, strict: o.grace > 0, away: o.away}
		o.solo.list[0] = &o.solo.call
		return o.solo.list[:]
	}
	type place struct {
		verb verb
		ttl  int64 // of the bare ones, which share it
		id   string
		slot uint16
	}
	var out []*call
	byPlace := make(map[place]*call, 4)
	tails := make(map[string]*op, len(batch)) // the last op of an id's group in the verb at hand
	for v := range verbs {
		clear(tails)
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
			if v == acquireBare {
				p.ttl = o.ttl
			}
			c := byPlace[p]
			if c == nil {
				c = &call{verb: v, slot: o.keys.slot}
				byPlace[p] = c
				out = append(out, c)
			}
			c.ops++
			c.strict = c.strict || o.grace > 0
			c.away = max(c.away, o.away)
			if tail := tails[o.id]; tail != nil && tail.grace == o.grace && (v != acquireBare || tail.limit == o.limit && tail.ttl == o.ttl) {
				tail.next = o
			} else {
				c.groups = append(c.groups, o)
			}
			tails[o.id] = o
		}
	}
	return out
}

// group returns how many ops stand behind the first of a group, itself included.
func (o *op) group() (n int64) {
	for ; o != nil; o = o.next {
		n++
	}
	return n
}

// command builds the command of c. With text Redis compiles the script, which it
// needs after a restart or a fail-over.
func (s *Store) command(ctx context.Context, c *call, text bool) *redis.Cmd {
	sc := verbScripts[c.verb]
	c.sent = time.Now()
	var nums []int64 // never grows: arguments point into it
	num := func(n int64) *int64 {
		if n < int64(len(argSmall)) {
			return &argSmall[n]
		}
		if nums == nil {
			nums = make([]int64, 0, 1+len(c.groups))
		}
		nums = append(nums, n)
		return &nums[len(nums)-1]
	}
	perGroup, perOp := 2, [verbs]int{releaseBare: 1, release: 1, renew: 8, acquireBare: 1, acquire: 8}[c.verb]
	perID := [verbs]int{releaseBare: 2, release: 4, renew: 4, acquireBare: 3, acquire: 4}[c.verb]
	nKeys := perID * len(c.groups)
	if c.strict {
		nKeys++
	}
	args := c.groups[0].solo.args[:0]
	if c.ops > 1 {
		args = make([]any, 0, 3+nKeys+3+perGroup*len(c.groups)+perOp*c.ops)
	}
	if text {
		args = append(args, &argEval, &sc.text)
	} else {
		args = append(args, &argEvalsha, &sc.sha)
	}
	args = append(args, num(int64(nKeys)))
	for _, g := range c.groups {
		switch args = append(args, &g.keys.s, &g.keys.m); perID {
		case 3:
			args = append(args, &g.keys.l)
		case 4:
			args = append(args, &g.keys.q, &g.keys.l)
		}
	}
	if c.strict {
		marker := markerKey(s.prefix, s.client.cluster, c.slot)
		args = append(args, &marker)
	}
	if c.verb.bare() {
		sweep := &argNo
		if s.sweepNow(c.sent) {
			sweep = &argYes
		}
		if args = append(args, sweep); c.verb == acquireBare {
			args = append(args, &c.groups[0].ttl, &c.groups[0].keyTTL)
		}
	} else {
		args = append(args, s.header(c))
	}
	for _, g := range c.groups {
		switch args = append(args, num(g.group())); c.verb {
		case releaseBare:
		case acquireBare:
			args = append(args, &g.limit)
		default:
			args = append(args, &g.grace)
		}
		for o := g; o != nil; o = o.next {
			switch args = append(args, &o.slot); c.verb {
			case renew:
				args = append(args, &o.ttl, &o.weight, &o.fence, &o.trust, &o.flag, &o.owner, &o.limit)
			case acquire:
				args = append(args, &o.weight, &o.limit, &o.ttl, &o.queue, &o.ticket, &o.flag, &o.owner)
			}
		}
	}
	return redis.NewCmd(ctx, args...)
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
	c.told = seen == '2'
	if c.away > 0 && seen != '2' {
		seen, echo, ago = '3', c.away, 0
	}
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

// fly makes a round trip with a batch, and answers its ops. It returns an error if
// Redis did not answer.
func (s *Store) fly(ctx context.Context, batch []*op) error {
	calls := s.calls(batch)
	err := s.send(ctx, calls, false)
	var again []*call
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
	// one. What was done already is answered as done, since asking twice with one slot
	// id is asking once.
	again = again[:0]
	for _, c := range calls {
		if e := c.cmd.Err(); e != nil && len(c.groups) > 1 && isConfig(e) {
			for i, g := range c.groups {
				again = append(again, &call{verb: c.verb, slot: c.slot, groups: c.groups[i : i+1], strict: g.grace > 0, ops: int(g.group())})
			}
			c.groups = nil
		}
	}
	if len(again) > 0 {
		_ = s.send(ctx, again, true)
	}
	// An id with leases, a line or a limit of its own is not for the bare verbs.
	var rest []*op
	for _, c := range append(calls, again...) {
		rest = append(rest, s.read(c)...)
	}
	if len(rest) > 0 {
		for _, o := range rest {
			o.verb, o.again = o.verb.whole(), true
		}
		return s.fly(ctx, rest)
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
	if s.durable.replicas > 0 {
		return s.sendDurably(ctx, calls)
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

// sendDurably sends calls and has the grants among them acknowledged by replicas. WAIT
// speaks of the connection that it is sent on, so it goes in the same pipeline, and on
// a Cluster every call goes to its node by itself.
func (s *Store) sendDurably(ctx context.Context, calls []*call) (first error) {
	cluster, _ := s.client.UniversalClient.(*redis.ClusterClient)
	for _, c := range calls {
		pipe := s.client.Pipeline()
		if cluster != nil {
			node, err := cluster.MasterForKey(ctx, c.groups[0].keys.s)
			if err != nil {
				c.cmd.SetErr(err)
				first = cmp.Or(first, err)
				continue
			}
			pipe = node.Pipeline()
		}
		_ = pipe.Process(ctx, c.cmd)
		var acknowledged *redis.Cmd
		if c.verb == acquire {
			acknowledged = pipe.Do(ctx, "wait", s.durable.replicas, s.durable.wait.Milliseconds())
		}
		if _, err := pipe.Exec(ctx); err != nil && first == nil {
			first = err
		}
		if acknowledged != nil && c.cmd.Err() == nil {
			if n, err := acknowledged.Int(); err != nil {
				c.short = classify(err)
			} else if n < s.durable.replicas {
				c.short = fmt.Errorf("%w: %d of %d replicas acknowledged it within %v", store.ErrNotReplicated, n, s.durable.replicas, s.durable.wait)
			}
		}
	}
	return first
}

// notBare is what the bare scripts answer for an id that is not for them.
const (
	notBareAcquire = -1 << 52
	notBareRelease = -1
)

// What the others answer to a call that came at an odd moment (see the prelude). From
// the time in the answer the store knows whether the server's clock jumped, and the
// second call says so.
const (
	askAgain   = 6
	renewAgain = 3
)

var errClock = errors.New("redisstore: Redis and this process do not agree on how much time has passed")

// read gives the answer of c to its ops. It returns those that the bare verbs do not
// answer.
func (s *Store) read(c *call) (rest []*op) {
	if len(c.groups) == 0 {
		return nil
	}
	got, err := c.cmd.Result()
	r := reply{name: verbScripts[c.verb].name, err: classify(err)}
	if list, ok := got.([]any); ok {
		r.list = list
	} else if n, ok := got.(int64); ok { // one slot, one number
		r.single[0] = n
		r.one = true
	}
	if !c.verb.bare() {
		if now := r.number(); c.strict && now != 0 {
			s.clocks.read(c.slot, now, c.sent, time.Now(), c.told)
		}
	}
	for _, g := range c.groups {
		var not bool
		for o := g; o != nil; o = o.next {
			if not && c.verb.bare() || r.err != nil {
				if o.err = r.err; r.err == nil {
					rest = append(rest, o)
				}
				continue
			}
			switch c.verb {
			case acquireBare:
				n := r.number()
				if not = n == notBareAcquire; not {
					break
				}
				o.decision = store.Decision{Outcome: store.Granted, Active: int(n), Limit: int(o.limit)}
				if n < 0 {
					o.decision = store.Decision{Outcome: store.Full, Active: int(-n - 1), Limit: int(o.limit), RetryIn: ms(r.number())}
				}
			case acquire:
				n := r.number()
				if not = n == askAgain && !o.again; n == askAgain {
					n = 5
				}
				o.decision = store.Decision{
					Outcome: outcomes[uint64(n)%uint64(len(outcomes))], Active: int(r.number()), Limit: int(r.number()), Waiting: int(r.number()),
					Place: int(r.number()), Fence: uint64(r.number()), Ticket: uint64(r.number()), RetryIn: ms(r.number()),
				}
				if o.flag == yes { // bare: the line numbers all of its grants
					o.decision.Fence = 0
				}
			case renew:
				n := r.number()
				if not = n == renewAgain && !o.again; n == renewAgain && o.again {
					r.err = errClock
				}
				o.kept = store.Kept(n)
			default:
				n := r.number()
				if not = n == notBareRelease && c.verb == releaseBare; !not {
					o.freed = n == 1
				}
			}
			if o.err = r.err; c.short != nil && c.verb == acquire && o.decision.Outcome == store.Granted {
				o.err = c.short
			}
			if not && r.err == nil {
				rest = append(rest, o)
			}
		}
	}
	if !c.verb.bare() {
		for ; r.err == nil && r.at < len(r.list); r.at++ {
			if slotID, ok := r.list[r.at].(string); ok {
				s.ears.wake(slotID)
			}
		}
	}
	return rest
}

// reply is what a script answered, read from front to back.
type reply struct {
	name   string
	list   []any
	single [1]int64
	one    bool
	at     int
	err    error
}

func (r *reply) number() int64 {
	switch {
	case r.err != nil:
		return 0
	case r.one && r.at == 0:
		r.at++
		return r.single[0]
	case r.at >= len(r.list):
		r.err = fmt.Errorf("redisstore: %s answered %d values where more were expected: does another version of its scripts run?", r.name, len(r.list))
		return 0
	}
	n, ok := r.list[r.at].(int64)
	if !ok {
		r.err = fmt.Errorf("redisstore: %s answered %T where a number was expected", r.name, r.list[r.at])
	}
	r.at++
	return n
}

// outcomes are the scripts' numbers.
var outcomes = [...]store.Outcome{store.Full, store.Granted, store.Waiting, store.LineFull, store.TooHeavy, store.Recovering}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
