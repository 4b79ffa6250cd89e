package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

// verb is one of those that ride together. In a trip they go in this order, so that
// what is given back can be taken.
type verb uint8

const (
	release verb = iota
	renew
	bare // to release and to acquire slots of ids that have no meta
	acquire
	verbs
)

var verbScripts = [verbs]*script{release: releaseScript, renew: renewScript, bare: bareScript, acquire: acquireScript}

// question is what an operation asks. Its numbers are fields that arguments point
// to, because go-redis encodes a *string or an *int64 without an allocation of its
// own.
type question struct {
	verb  verb // a trip may change it from bare to another
	takes bool // it acquires
	bare  bool // acquire: no fence, no owner
	fresh bool // acquire: its slot id was never asked for before
	put   bool // renew: register

	id, slot, owner              string
	weight, limit, queue, ticket int64
	ttl                          int64 // ms
	fence, trust, grace          int64
	away                         int64 // ms: its caller comes back from an outage of so long

	budget time.Duration
	due    time.Time // when the budget is over, or the ctx if that is sooner
}

// answer is what Redis says to it.
type answer struct {
	decision store.Decision
	freed    bool
	kept     store.RenewOutcome
	err      error
}

// op is one operation on one slot id.
type op struct {
	question
	answer
	keys  keys   // see names
	named string // the id that they are of
	all   bool   // they are all there, and not only S
	full  bool   // bare.lua has said that ids of the prefix may have meta

	turn   chan struct{} // of one that may lead a trip: told to, or that it is answered
	lead   bool          // that
	gone   bool          // its caller has left
	sent   bool          // it is under way, or was
	landed bool          // it was answered
	late   bool          // its trip was given up: its caller leaves it to that
	tries  int           // how often it was asked again since it came late, or in doubt
	async  func(id, slotID string, err error)
	next   *op // of the same group
}

// names makes the keys of the op's id, which the first of a group does for all of it. An
// op that is used again for the same id has them.
func (o *op) names(prefix string) *keys {
	if o.named != o.id || !o.all {
		o.keys, o.named, o.all = keysOf(prefix, o.id), o.id, true
	}
	return &o.keys
}

// holders makes one of them, S, or all.
func (o *op) holders(prefix string, all bool) *string {
	if all {
		return &o.names(prefix).s
	}
	if o.named != o.id {
		o.keys, o.named, o.all = keys{s: prefix + o.id}, o.id, false
	}
	return &o.keys.s
}

// gives reports whether the op gives back a slot.
func (o *op) gives() bool { return o.verb == release || o.verb == bare && !o.takes }

// whole has the op done by the verb that does the same for an id that has meta.
func (o *op) whole() {
	if o.verb == bare {
		o.verb = release
		if o.takes {
			o.verb = acquire
		}
	}
}

// group returns how many ops stand behind the first of a group, itself included.
func (o *op) group() (n int64) {
	for ; o != nil; o = o.next {
		n++
	}
	return n
}

// call is one script call of a trip.
type call struct {
	place
	backs  []*op // those of a bare call that give back; each the first of the ops of one id, in order
	groups []*op // all others, likewise
	full   bool  // a bare call names the keys of meta
	strict bool  // the marker goes along
	away   int64 // so does word of an outage
	short  error // too few replicas have acknowledged its grants
	cmd    *redis.Cmd
	number int64 // that its reply must repeat
	sent   time.Time
	told   bool  // it tells Redis that its clock jumped
	latest int64 // by the server's clock, when it may take something
	tells  bool  // a bare call looks at the clock, and for lapsed slots
}

// place is what the operations of a call have in common.
type place struct {
	verb verb
	ttl  int64  // of those that acquire bare slots
	slot uint16 // on a Cluster

	bySlot bool   // keys go by cluster slot
	id     string // on a client of which nothing is known
}

// trip is what one round trip carries, and what it needs on the way: trips are used
// again, so that they allocate next to nothing.
type trip struct {
	ops    []*op
	room   int           // for more
	due    time.Time     // when it ends at the latest
	leader *op           // who makes it; nil: a goroutine of the pump
	done   chan struct{} // closed when it is answered; nil: nobody but the leader waits for that

	byLeader bool // under way on the goroutine of its leader
	givenUp  bool // it did not end in time, and its callers were told
	keeps    bool // it was given up, and has not given its place on

	calls []*call
	ctx   tripContext

	spare []*call
	args  []any
	nums  []int64
	tails [256]tail
	pass  uint64
}

// tail is the last op of a group, at a hash of its id. Where one is overwritten, an id
// has two groups, which does no harm.
type tail struct {
	pass uint64
	op   *op
	call *call
}

var hashSeed = maphash.MakeSeed()

// Arguments that are the same in every call.
var (
	argEval, argEvalsha = "eval", "evalsha"
	argSmall            = [...]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
)

func bits(one, two bool) (n int64) {
	if one {
		n++
	}
	if two {
		n += 2
	}
	return n
}

// sort divides the ops into script calls: one per verb, on a Cluster one per verb and
// slot. Within a call, the ops of one id stand together.
func (s *Store) sort(t *trip) {
	t.calls = t.calls[:0]
	t.pass++
	var last [2 * verbs]*tail // of one kind; all of a batch are of one id, often
	for _, o := range t.ops {
		o.next = nil
		kind := 2 * o.verb
		if o.takes {
			kind++
		}
		at := last[kind]
		if at == nil || at.op.id != o.id {
			at = &t.tails[(maphash.String(hashSeed, o.id)+uint64(kind))%uint64(len(t.tails))]
			last[kind] = at
		}
		c := at.call
		if at.pass == t.pass && at.op.goesWith(o) {
			at.op.next, at.op = o, o
		} else {
			if c = t.call(s.place(o), o.takes); o.verb == bare && !o.takes {
				c.backs = append(c.backs, o)
			} else {
				c.groups = append(c.groups, o)
			}
			*at = tail{t.pass, o, c}
		}
		c.full = c.full || o.full
		c.strict = c.strict || o.grace > 0
		c.away = max(c.away, o.away)
	}
	if len(t.calls) > 1 {
		slices.SortStableFunc(t.calls, func(a, b *call) int { return cmp.Compare(a.verb, b.verb) })
	}
}

// place is where o belongs.
func (s *Store) place(o *op) place {
	p := place{verb: o.verb}
	switch {
	case s.slotted():
		p.slot, p.bySlot = o.names(s.prefix).slot, true
	case s.client.perID:
		p.id = o.id
	}
	if o.verb == bare {
		p.ttl = o.ttl
	}
	return p
}

// alike reports whether o, and all of its group, ask for nothing but a slot now: but for
// the slot ids, they are the same.
func (o *op) alike() bool { return o.verb == acquire && o.queue <= 0 && o.ticket == 0 }

// goesWith reports whether other belongs into o's group.
func (o *op) goesWith(other *op) bool {
	switch {
	case o.id != other.id || o.verb != other.verb || o.takes != other.takes || o.grace != other.grace:
		return false
	case o.verb == bare:
		return o.limit == other.limit && o.ttl == other.ttl
	case o.alike():
		return other.alike() && o.weight == other.weight && o.limit == other.limit && o.ttl == other.ttl && o.queue == other.queue &&
			o.bare == other.bare && o.fresh == other.fresh && o.owner == other.owner
	}
	return !other.alike()
}

// call returns the call at p, one of those there are or a new one. What gives back
// bare slots has no ttl, and goes with any, but in the first.
func (t *trip) call(p place, takes bool) *call {
	for _, c := range t.calls {
		at := c.place
		if p.verb == bare && (!takes || at.ttl == 0) {
			at.ttl = p.ttl
		}
		if at == p {
			if takes {
				c.ttl = p.ttl
			}
			return c
		}
	}
	n := len(t.calls)
	if n == len(t.spare) {
		t.spare = append(t.spare, new(call))
	}
	c := t.spare[n]
	*c = call{place: p, backs: c.backs[:0], groups: c.groups[:0]}
	t.calls = append(t.calls, c)
	return c
}

// num makes n an argument.
func (t *trip) num(n int64) *int64 {
	if n >= 0 && n < int64(len(argSmall)) {
		return &argSmall[n]
	}
	t.nums = append(t.nums, n) // arguments may point into what it was before it grew
	return &t.nums[len(t.nums)-1]
}

// command builds the command of c. With text Redis compiles the script, which it
// needs after a restart or a fail-over.
func (s *Store) command(ctx context.Context, t *trip, c *call, text bool) *redis.Cmd {
	sc := verbScripts[c.verb]
	c.sent = time.Now()
	c.number = int64(s.calls.Add(1) % callNumbers)
	c.latest, c.tells = never, s.sweepNow(c.sent)
	if len(c.groups) > 0 && c.verb != release {
		stale := false
		if c.latest, stale = s.clocks.latest(c.slot, c.sent, c.leaves()); stale {
			c.tells = true
		}
	}
	nKeys := 4*len(c.groups) + 1
	if c.verb == bare {
		c.full = c.full || c.sent.UnixNano() < s.special.Load()
		if nKeys = len(c.backs) + len(c.groups) + 1; c.full {
			nKeys = 2*len(c.backs) + 3*len(c.groups)
		}
	}
	begin := len(t.args)
	args := t.args
	if text {
		args = append(args, &argEval, &sc.text)
	} else {
		args = append(args, &argEvalsha, &sc.sha)
	}
	args = append(args, t.num(int64(nKeys)))
	if c.verb == bare {
		args = s.bareArgs(t, c, args)
	} else {
		args = s.wholeArgs(t, c, args)
	}
	t.args = args
	return redis.NewCmd(ctx, args[begin:len(args):len(args)]...)
}

// bareArgs appends the keys and the arguments of bare.lua.
func (s *Store) bareArgs(t *trip, c *call, args []any) []any {
	for _, g := range c.backs {
		args = append(args, g.holders(s.prefix, c.full))
	}
	sure := s.surely()
	for _, g := range c.groups {
		args = append(args, g.holders(s.prefix, c.full))
		for o := g; o != nil; o = o.next {
			sure = sure && o.fresh
		}
	}
	if !c.full {
		args = append(args, s.marker(c.slot))
	} else {
		for _, g := range c.backs {
			args = append(args, &g.keys.m)
		}
		for _, g := range c.groups {
			args = append(args, &g.keys.m, &g.keys.l)
		}
	}
	single := c.single()
	head := bits(c.tells, sure) + 4*bits(single, c.full) + 16*(c.number+callNumbers*int64(len(c.backs)))
	args = append(args, t.num(head))
	for _, g := range c.backs {
		if !single {
			args = append(args, t.num(g.group()))
		}
		for o := g; o != nil; o = o.next {
			args = append(args, &o.slot)
		}
	}
	if len(c.groups) > 0 {
		args = append(args, &c.groups[0].ttl)
		if single {
			args = append(args, &c.groups[0].limit)
		}
		args = append(args, t.num(c.latest))
	}
	for _, g := range c.groups {
		n := g.group()
		if !single {
			args = append(args, t.num(n), &g.limit)
			if sure { // more than the limit cannot be granted
				n = min(n, g.limit)
			}
		}
		for o := g; o != nil && n > 0; o, n = o.next, n-1 {
			args = append(args, &o.slot)
		}
	}
	return args
}

// leaves is when the last of those who ask something of c that is not giving back leaves.
func (c *call) leaves() (due time.Time) {
	for _, g := range c.groups {
		for o := g; o != nil; o = o.next {
			if o.due.After(due) {
				due = o.due
			}
		}
	}
	return due
}

// single reports whether c, a bare call, is about one slot of each id, and of one limit.
func (c *call) single() bool {
	for _, g := range c.backs {
		if g.next != nil {
			return false
		}
	}
	for _, g := range c.groups {
		if g.next != nil || g.limit != c.groups[0].limit {
			return false
		}
	}
	return true
}

// some is one of those whose keys c names.
func (c *call) some() *op {
	if len(c.backs) > 0 {
		return c.backs[0]
	}
	return c.groups[0]
}

// surely reports whether a slot id that is sent for the first time is carried out at
// most once, so that it cannot be there.
func (s *Store) surely() bool { return s.client.once != nil }

// wholeArgs appends the keys and the arguments of the other scripts.
func (s *Store) wholeArgs(t *trip, c *call, args []any) []any {
	for _, g := range c.groups {
		args = append(args, &g.names(s.prefix).s)
	}
	for _, g := range c.groups {
		args = append(args, &g.keys.m)
	}
	for _, g := range c.groups {
		args = append(args, &g.keys.q)
	}
	for _, g := range c.groups {
		args = append(args, &g.keys.l)
	}
	args = append(args, s.marker(c.slot), s.header(c))
	sure := s.surely()
	for _, g := range c.groups {
		n, alike := g.group(), g.alike()
		if alike {
			n = -n
		}
		if args = append(args, t.num(n), &g.grace); alike {
			args = append(args, &g.weight, &g.limit, &g.ttl, &g.queue, &g.ticket, t.num(bits(g.bare, sure && g.fresh)), &g.owner)
		}
		for o := g; o != nil; o = o.next {
			switch args = append(args, &o.slot); {
			case c.verb == renew:
				args = append(args, &o.ttl, &o.weight, &o.fence, &o.trust, t.num(bits(o.put, false)), &o.owner, &o.limit)
			case c.verb == acquire && !alike:
				args = append(args, &o.weight, &o.limit, &o.ttl, &o.queue, &o.ticket, t.num(bits(o.bare, sure && o.fresh)), &o.owner)
			}
		}
	}
	return args
}

// marker is the name of the marker of a cluster slot.
func (s *Store) marker(slot uint16) *string {
	if !s.slotted() {
		return &s.oneMarker
	}
	name := markerKey(s.prefix, true, slot)
	return &name
}

// callNumbers is how many calls there are until a number comes again.
const callNumbers = 1024

// header is ARGV[1]; the prelude says what is in it.
func (s *Store) header(c *call) *string {
	b := make([]byte, 0, 80)
	b = append(b, byte('0'+bits(c.tells, false)))
	if s.sharded() {
		b = append(b, s.shardHead...)
	} else {
		b = append(b, s.head...)
	}
	b = strconv.AppendInt(b, c.number, 10)
	seen, echo, ago := byte('1'), int64(0), int64(0)
	if c.strict {
		seen, echo, ago = s.clocks.header(c.slot, c.sent)
		c.told = seen == '2'
		if c.away > 0 && seen != '2' {
			seen, echo, ago = '3', c.away, 0
		}
	}
	b = append(b, ' ', seen, ' ')
	b = strconv.AppendInt(b, echo, 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, ago, 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, c.latest, 10)
	h := string(b)
	return &h
}

// sweepEvery is how often a process has calls that write look for lapsed slots.
// They do not count either way; looking costs a command.
const sweepEvery = 20 * time.Millisecond

func (s *Store) sweepNow(now time.Time) bool {
	if s.general {
		return true
	}
	t, last := now.UnixNano(), s.swept.Load()
	return t-last >= int64(sweepEvery) && s.swept.CompareAndSwap(last, t)
}

// fly makes a round trip, and answers its ops. It returns an error if Redis did not
// answer.
func (s *Store) fly(ctx context.Context, t *trip) error {
	if err := s.learn(ctx); err != nil {
		for _, o := range t.ops {
			o.err = classify(err)
		}
		return err
	}
	s.sort(t)
	t.args, t.nums = t.args[:0], t.nums[:0]
	err := s.send(ctx, t, t.calls, false)
	if s.crossed(t.calls) {
		for _, o := range t.ops {
			o.fresh = false
		}
		return s.fly(ctx, t)
	}
	if s.client.once != nil && isBroken(err) && ctx.Err() == nil {
		// A connection that Redis had closed, most often. What was carried out already is
		// answered as done, since asking twice with one slot id is asking once.
		for _, o := range t.ops {
			o.fresh = false
			if o.takes {
				s.resent.add(o.slot, o.due)
			}
		}
		err = s.send(ctx, t, t.calls, false)
	}
	var again []*call
	for _, c := range t.calls {
		if isNoScript(c.cmd.Err()) {
			again = append(again, c)
		}
	}
	if len(again) > 0 {
		// Its scripts are gone: after a restart, a fail-over, a SCRIPT FLUSH. Nothing
		// of the call was run.
		err = s.send(ctx, t, again, true)
	}
	if err == nil {
		s.learnGrace(ctx, t.calls)
	}
	// A script stops at the first id that it fails on, such as a key of another type.
	// One caller's bad luck is its own: the ids of such a call are asked for one by
	// one.
	again = again[:0]
	for _, c := range t.calls {
		if e := c.cmd.Err(); e != nil && len(c.backs)+len(c.groups) > 1 && (isConfig(e) || isMoving(e)) {
			for i := range c.backs {
				again = append(again, &call{place: c.place, backs: c.backs[i : i+1], full: c.full})
			}
			for i, g := range c.groups {
				for o := g; o != nil; o = o.next {
					o.fresh = false
				}
				again = append(again, &call{place: c.place, groups: c.groups[i : i+1], full: c.full, strict: g.grace > 0})
			}
			c.backs, c.groups = nil, nil
		}
	}
	if len(again) > 0 {
		_ = s.send(ctx, t, again, true)
	}
	if isMoving(err) {
		err = nil // the server answers; what becomes of the ops, each hears
	}
	// An id with leases, a line or a limit of its own is not for the bare verb.
	rest := s.trip()
	for _, c := range t.calls {
		rest.ops = s.read(ctx, c, rest.ops)
	}
	for _, c := range again {
		rest.ops = s.read(ctx, c, rest.ops)
	}
	if len(rest.ops) > 0 {
		err = s.fly(ctx, rest)
		s.recycle(rest)
		return err
	}
	s.recycle(rest)
	if err != nil {
		s.client.lookAround(err)
		if isConfig(err) {
			err = nil
		}
	}
	return err
}

// trip returns an empty trip.
func (s *Store) trip() *trip { return s.flights.Get().(*trip) }

// recycle has a trip used again, when its ops are answered and nobody leads it any
// more.
func (s *Store) recycle(t *trip) {
	clear(t.ops)
	t.ops, t.leader, t.done, t.byLeader = t.ops[:0], nil, nil, false
	t.ctx.reset()
	if s.client.shared {
		t.args, t.nums = nil, nil // its hooks may still look at them
	}
	s.flights.Put(t)
}

// send sends calls and waits for their answers. Its error is that of the first that
// failed; each has its own.
func (s *Store) send(ctx context.Context, t *trip, calls []*call, text bool) error {
	for _, c := range calls {
		c.cmd = s.command(ctx, t, c, text)
	}
	if s.durable.replicas > 0 {
		return s.sendDurably(ctx, calls)
	}
	to := s.client.trips()
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

// match makes an error of a reply that belongs to another call. A connection can be out
// of step with its replies: something on the way delivers one twice, a client leaves one
// unread. Believed, it would make a refusal a grant.
func (c *call) match() {
	if err := c.cmd.Err(); err != nil {
		if redis.HasErrorPrefix(err, "ERR unknown subcommand") { // a script call has none
			c.cmd.SetErr(errOutOfStep)
		}
		return
	}
	n, alone := c.cmd.Val().(int64)
	if list, ok := c.cmd.Val().([]any); ok && len(list) > 0 {
		n, alone = list[0].(int64)
	}
	if n < 0 && c.verb != bare {
		n = -n
	}
	if !alone || (n%callNumbers+callNumbers)%callNumbers != c.number {
		c.cmd.SetErr(errOutOfStep)
	}
}

var errOutOfStep = fmt.Errorf("redisstore: Redis, or something on the way to it, answered another call than this one: %w", io.ErrUnexpectedEOF)

// sendDurably sends calls and has the grants among them acknowledged by replicas. WAIT
// speaks of the connection that it is sent on, so it goes in the same pipeline, and on
// a Cluster every call goes to its node by itself.
func (s *Store) sendDurably(ctx context.Context, calls []*call) (first error) {
	cluster, _ := s.client.UniversalClient.(*redis.ClusterClient)
	for _, c := range calls {
		pipe := s.client.trips().Pipeline()
		if cluster != nil {
			node, err := cluster.MasterForKey(ctx, *c.some().holders(s.prefix, false))
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
		_, err := pipe.Exec(ctx)
		c.match()
		first = cmp.Or(first, err, c.cmd.Err())
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

// specialFor is for how long a store that was told of ids with meta names their keys at once,
// and is not told anew.
const specialFor = 10 * time.Second

// notBare is what bare.lua answers for an id that is not for it.
const (
	notBareAcquire = -1 << 52
	lateBare       = notBareAcquire + 1
	notBareRelease = -1
)

// What the others answer to a call that came at an odd moment (see the prelude). From
// the time in the answer the store knows whether the server's clock jumped, and the
// second call says so.
const (
	askAgain   = 6
	renewAgain = 4
)

var errClock = errors.New("redisstore: Redis and this process do not agree on how much time has passed")

// read gives the answer of c to its ops. It adds those that the bare verb does not
// answer to rest.
func (s *Store) read(ctx context.Context, c *call, rest []*op) []*op {
	if len(c.backs)+len(c.groups) == 0 {
		return rest
	}
	got, err := c.cmd.Result()
	if isMoving(err) {
		s.moving(ctx, c)
		return rest
	}
	r := reply{name: verbScripts[c.verb].name, err: classify(err)}
	if list, ok := got.([]any); ok {
		r.list = list
	} else if n, ok := got.(int64); ok { // one slot
		r.one, r.single = true, (n-c.number)/callNumbers
	}
	if c.verb == bare {
		if !r.one {
			if now := r.number() / callNumbers; now > 0 {
				s.clocks.read(c.slot, -now, c.sent, time.Now(), false)
			}
		}
		if !c.full && len(r.list) == 1 && r.err == nil {
			s.special.Store(time.Now().Add(specialFor).UnixNano())
			for _, groups := range [...][]*op{c.backs, c.groups} {
				for _, g := range groups {
					for o := g; o != nil; o = o.next {
						o.full = true
					}
					rest = g.appendTo(rest)
				}
			}
			return rest
		}
		for _, g := range c.backs {
			rest = r.releasedBare(g, rest)
		}
		for _, g := range c.groups {
			rest = r.acquiredBare(g, rest)
		}
		return rest
	}
	now := r.number() / callNumbers
	if now != 0 {
		s.clocks.read(c.slot, now, c.sent, time.Now(), c.told)
	}
	if c.verb == acquire && len(r.list) == 1 && r.err == nil {
		for _, g := range c.groups {
			rest = g.lateTo(rest)
		}
		return rest
	}
	var highest uint64 // fence or ticket
	for _, g := range c.groups {
		// Of most ids there is an answer for all of their ops together.
		together := c.verb != renew && r.err == nil
		if together {
			first := r.number()
			if together = first >= 0 && r.err == nil; together {
				highest = max(highest, r.together(c, g, first))
			}
		}
		for o := g; o != nil; o = o.next {
			again := false
			switch {
			case together:
			case c.verb == acquire:
				n := r.number()
				if again = n == askAgain && o.askAnew(); n == askAgain {
					n = 5
				}
				o.decision = store.Decision{
					Outcome: outcomes[uint64(n)%uint64(len(outcomes))], Active: int(r.number()), Limit: int(r.number()), Waiting: int(r.number()),
					Place: int(r.number()), Fence: uint64(r.number()), Ticket: uint64(r.number()), RetryIn: ms(r.number()),
				}
				highest = max(highest, o.decision.Fence, o.decision.Ticket)
				if o.bare { // the line numbers all of its grants
					o.decision.Fence = 0
				}
				if o.decision.Outcome == store.Waiting {
					o.decision.PollID = uint64(max(now, -now))
				}
			case c.verb == renew:
				n := r.number()
				if again = n == renewAgain && o.askAnew(); n == renewAgain && !again {
					r.err = errClock
				}
				o.kept = store.RenewOutcome(n)
			default:
				o.freed = r.number() == 1
			}
			if o.err = r.err; c.short != nil && c.verb == acquire && o.decision.Outcome == store.Granted {
				o.err = c.short
			}
			if again && r.err == nil {
				rest = append(rest, o)
			}
		}
	}
	if c.strict && highest > 0 {
		s.clocks.gave(c.slot, highest)
	}
	for ; r.err == nil && r.at < len(r.list); r.at++ {
		if word, ok := r.list[r.at].(string); ok {
			s.ears.hears(word)
		}
	}
	return rest
}

// together reads an answer for all the ops of an id: of acquire.lua, that the first n
// are granted and the others refused, of release.lua, that each gave back something. It
// returns the highest fence.
func (r *reply) together(c *call, g *op, n int64) (highest uint64) {
	if c.verb == release {
		for o := g; o != nil; o = o.next {
			o.freed = true
		}
		return 0
	}
	active, fence, lapse := int(r.number()), uint64(r.number()), ms(r.number())
	at := active - int(n)
	for o := g; o != nil; o = o.next {
		if n == 0 {
			o.decision = store.Decision{Outcome: store.Full, Active: active, Limit: int(o.limit), RetryIn: lapse}
			continue
		}
		n, at = n-1, at+1
		o.decision = store.Decision{Outcome: store.Granted, Active: at, Limit: int(o.limit), Fence: fence}
		highest, fence = fence, fence+1
	}
	return highest
}

// acquiredBare reads what bare.lua answers for those who ask for a slot of one id.
func (r *reply) acquiredBare(g *op, rest []*op) []*op {
	first := r.number()
	if first == notBareAcquire && r.err == nil {
		return g.wholeTo(rest)
	}
	if first == lateBare && r.err == nil {
		return g.lateTo(rest)
	}
	limit := int(g.limit)
	granted := func(active int64) store.Decision {
		return store.Decision{Outcome: store.Granted, Active: int(active), Limit: limit}
	}
	full := func(active int64) store.Decision {
		return store.Decision{Outcome: store.Full, Active: int(active), Limit: limit, RetryIn: ms(r.number())}
	}
	if g.next == nil {
		if first >= 0 {
			g.decision = granted(first)
		} else {
			g.decision = full(-first - 1)
		}
		g.err = r.err
		return rest
	}
	active := r.number()
	o := g
	for n := first; n > 0 && o != nil; n, o = n-1, o.next {
		o.decision = granted(max(active-n+1, 1))
	}
	if o != nil {
		none := full(active)
		for refused := o; refused != nil; refused = refused.next {
			refused.decision = none
		}
		for n := r.number(); n > 0; n-- { // but these were there already
			place := r.number()
			for o = g; place > 1 && o != nil; o = o.next {
				place--
			}
			if o != nil {
				o.decision = granted(active)
			}
		}
	}
	for o = g; o != nil; o = o.next {
		o.err = r.err
	}
	return rest
}

// releasedBare reads what bare.lua answers for those who give back a slot of one id.
func (r *reply) releasedBare(g *op, rest []*op) []*op {
	n := r.number()
	if n == notBareRelease && r.err == nil {
		return g.wholeTo(rest)
	}
	for o := g; o != nil; o = o.next {
		o.freed, o.err = n == 1, r.err
	}
	return rest
}

// appendTo adds a group to ops.
func (o *op) appendTo(ops []*op) []*op {
	for ; o != nil; o = o.next {
		ops = append(ops, o)
	}
	return ops
}

// wholeTo adds a group to ops, to be done by another verb than bare.
func (o *op) wholeTo(ops []*op) []*op {
	for ; o != nil; o = o.next {
		o.whole()
		ops = append(ops, o)
	}
	return ops
}

// askAnew reports whether o is to be asked again after it came late, or at a moment that
// the clock did not explain: it is in time, and has not been asked so too often.
func (o *op) askAnew() bool {
	o.tries++
	return o.tries <= 3 && time.Now().Before(o.due)
}

// lateTo has a group answered that came too late to take anything. Whose time is not
// over, of that the estimate of the server's clock was wrong, and it is asked again.
func (o *op) lateTo(ops []*op) []*op {
	for ; o != nil; o = o.next {
		if o.askAnew() {
			ops = append(ops, o)
		} else if time.Now().Before(o.due) {
			o.err = errClock
		} else {
			o.err = errTimeout
		}
	}
	return ops
}

// reply is what a script answered, read from front to back.
type reply struct {
	name   string
	list   []any
	single int64
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
		return r.single
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
